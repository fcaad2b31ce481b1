from jax_smash.tasks import Example
from jax_smash.tasks.draft import Draft, fill


class Letters(Draft):
    """A text of units of given sizes, in turn."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.proposed = 0

    def propose(self):
        self.proposed += 1
        return "x" * self.sizes[(self.proposed - 1) % len(self.sizes)]

    def finish(self):
        return Example(task="copying", prompt="q" + "".join(self.units), separator=" ", answer="a")


def test_a_question_that_alone_is_too_long_makes_no_example():
    assert fill(Letters([1]), length=2, size=len) is None


def test_a_question_that_just_fits_is_left_alone():
    assert fill(Letters([1]), length=3, size=len).prompt == "q"


def test_units_too_large_for_what_is_left_are_passed_over():
    example = fill(Letters([60, 30, 5]), length=100, size=len)
    assert example.prompt == "q" + "x" * 95


def test_a_beginning_token_is_counted_once():
    assert len(fill(Letters([9]), length=100, size=lambda text: len(text) + 1).prompt) == 91


def test_a_size_that_does_not_add_up_never_leads_past_the_length():
    def size(text):
        return len(text) if len(text) < 20 else 2 * len(text)

    example = fill(Letters([7]), length=100, size=size)
    assert 85 <= size(example.text) <= 100


def test_units_without_a_size_do_not_go_on_forever():
    assert len(fill(Letters([1]), length=100, size=lambda text: text.count(" ")).prompt) < 400
