from jax_smash.hosts.life import SIGN_S, SILENT_S, Silence


def test_a_process_that_falls_silent_is_named_once_and_again_after_it_spoke():
    silence = Silence()
    assert silence.named({0: "1", 1: "1"}, 0.0) == []
    assert silence.named({0: "2", 1: "1"}, float(SILENT_S - 1)) == []
    assert silence.named({0: "3", 1: "1"}, float(SILENT_S)) == [1]
    assert silence.named({0: "4", 1: "1"}, float(SILENT_S + SIGN_S)) == []
    assert silence.named({0: "5", 1: "2"}, float(2 * SILENT_S)) == []
    assert silence.named({0: "6", 1: "2"}, float(3 * SILENT_S)) == [1]


def test_processes_that_speak_are_never_named():
    silence = Silence()
    for second in range(0, 10 * SILENT_S, SIGN_S):
        assert silence.named({0: str(second), 1: str(second)}, float(second)) == []


def test_several_that_fall_silent_together_are_named_in_order():
    silence = Silence()
    silence.named({2: "1", 1: "1", 0: "1"}, 0.0)
    assert silence.named({2: "1", 1: "1", 0: "2"}, float(SILENT_S)) == [1, 2]
