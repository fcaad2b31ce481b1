import pytest

from jax_smash.tasks import Example

PLACE = Example(task="coreference", prompt="Tom went back to", separator=" ", answer="Velmora", rest=", at last.")
SUM = Example(
    task="arithmetic",
    prompt="Question: What is 27 + 45?\nAnswer:",
    separator=" ",
    answer="7 + 5 = 12, write 2, carry 1. 2 + 4 + 1 = 7, write 72. So the answer is 72",
    rest=".",
    final="72",
)
LIST = Example(task="copying", prompt="Copy: a b c", separator="\n", answer="a b c")


def test_a_document_is_prompt_separator_answer_and_rest():
    assert PLACE.text == "Tom went back to Velmora, at last."
    assert LIST.text == "Copy: a b c\na b c"


@pytest.mark.parametrize(
    "continuation", [" Velmora", "Velmora.", "\nvelmora, and he was glad", "  VELMORA\n\nThen", " Velmora's gate"]
)
def test_the_answer_is_accepted_whatever_its_case_and_what_follows(continuation):
    assert PLACE.is_correct(continuation)


@pytest.mark.parametrize(
    "continuation", ["", " Velmor", " Velmoras", " Velmora2", " the Velmora", " Vel mora", ". Velmora"]
)
def test_anything_but_the_answer_at_the_beginning_is_rejected(continuation):
    assert not PLACE.is_correct(continuation)


@pytest.mark.parametrize("continuation", ["a b c", "\na  b\nc", "A B C d", "a b c."])
def test_items_of_a_list_may_stand_on_several_lines(continuation):
    assert LIST.is_correct(continuation)


@pytest.mark.parametrize("continuation", ["a b", "a b cd", "a c b", "abc", "x a b c"])
def test_a_list_with_a_wrong_item_is_rejected(continuation):
    assert not LIST.is_correct(continuation)


@pytest.mark.parametrize(
    "continuation",
    [
        SUM.answer,
        " wrong steps 1 + 1 = 3. So the answer is 72.",
        "Adding the two gives 72. The answer is: 72\n\nQuestion: What is 1 + 1? The answer is 2",
        " 72",
        "72.\nQuestion: What is 5 + 5?",
        "The answer is **72**",
    ],
)
def test_with_worked_steps_only_the_conclusion_counts(continuation):
    assert SUM.is_correct(continuation)


@pytest.mark.parametrize(
    "continuation",
    [
        "",
        "7 + 5 = 12, write 2, carry 1. 2 + 4 + 1 = 7, write 72.",
        SUM.answer.removesuffix("72") + "62",
        SUM.answer + "0",
        "72 is wrong. So the answer is 71",
        "So the answer is 71. So the answer is 72",
        "So the answer is -72",
        "72 + 1",
        "27",
    ],
)
def test_steps_without_the_right_conclusion_are_rejected(continuation):
    assert not SUM.is_correct(continuation)


def test_a_thousands_comma_changes_nothing():
    large = Example(task="arithmetic", prompt="?", separator=" ", answer="So the answer is 2700", final="2700")
    assert large.is_correct("So the answer is 2,700.")


def test_without_a_question_of_its_own_the_chat_asks_with_the_prompt():
    assert PLACE.messages == (
        {"role": "user", "content": "Tom went back to"},
        {"role": "assistant", "content": "Velmora"},
    )
