import numpy as np
import pytest

from train.data.replies import Replies, may_join

USER, ASSISTANT, END = 2, 3, 5


def tokens(*values):
    return np.array(values, np.uint16)


def reply_marks(replies, text, seed=(0,), answers=()):
    return replies.marks(text, np.isin(np.arange(len(text)), answers), seed)


def test_what_the_assistant_says_is_a_reply_up_to_its_end():
    chat = tokens(0, USER, 40, 41, END, ASSISTANT, 50, 51, END, USER, 42, END, ASSISTANT, 52, END, 1)
    marks = reply_marks(Replies((ASSISTANT,), (END,)), chat)
    assert np.flatnonzero(marks).tolist() == [6, 7, 8, 13, 14]
    # The first token of a reply begins a group: it is read from the prompt's last slot.
    assert np.flatnonzero(may_join(marks)).tolist() == [7, 8, 14]


def test_a_mark_of_several_tokens_and_a_reply_that_is_cut_off():
    chat = tokens(0, 8, 9, 50, 51, 9, 8, 7, 8, 9, 52)
    marks = reply_marks(Replies((8, 9), (9, 8)), chat)
    assert np.flatnonzero(marks).tolist() == [3, 4, 5, 6, 10]
    assert not reply_marks(Replies((8, 9), (7,)), tokens(1, 2, 8, 9)).any()


def test_a_text_begins_with_a_prompt_of_any_length_up_to_its_share():
    text = np.arange(10, 110, dtype=np.uint16)
    replies = Replies((ASSISTANT,), (END,), prompt_share=0.25)
    first = [int(np.argmax(reply_marks(replies, text, (seed,)))) for seed in range(300)]
    assert min(first) == 1
    assert 20 <= max(first) <= 25
    assert len({*first}) > 15
    assert all(reply_marks(replies, text, (seed,))[first[seed] :].all() for seed in range(300))
    np.testing.assert_array_equal(reply_marks(replies, text, (4, 5)), reply_marks(replies, text, (4, 5)))


def test_all_that_stands_before_the_first_marked_answer_is_a_prompt():
    text = np.arange(10, 110, dtype=np.uint16)
    for seed in range(20):
        marks = reply_marks(Replies((ASSISTANT,), (END,)), text, (seed,), answers=(70, 71, 90))
        assert np.flatnonzero(marks).tolist() == list(range(70, 100))
    chat = tokens(0, USER, 40, END, ASSISTANT, 50, 51, END, 1)
    assert np.flatnonzero(reply_marks(Replies((ASSISTANT,), (END,)), chat, answers=(6,))).tolist() == [5, 6, 7]


def test_what_stands_between_answers_may_be_a_prompt_too():
    text = np.arange(10, 30, dtype=np.uint16)
    alone = Replies((ASSISTANT,), (END,), answers_alone=True)
    assert np.flatnonzero(reply_marks(alone, text, answers=(0, 1, 5, 6, 9))).tolist() == [1, 5, 6, *range(9, 20)]
    np.testing.assert_array_equal(
        reply_marks(alone, text, (3,)), reply_marks(Replies((ASSISTANT,), (END,)), text, (3,))
    )


def test_a_prompt_is_what_stands_before_the_first_reply():
    replies = Replies((7, 8), (9,))
    for document, prompt in (([1, 2, 7, 8, 3, 9, 4, 7, 8, 5], [1, 2]), ([7, 8, 3], [7, 8, 3]), ([1, 2, 7], [1, 2, 7])):
        np.testing.assert_array_equal(replies.prompt(np.array(document, np.uint16)), prompt)


def test_a_documents_first_token_is_never_a_reply():
    for count in (1, 2, 3):
        marks = reply_marks(Replies(prompt_share=0.0), np.arange(count, dtype=np.uint16))
        assert marks.tolist() == [False] + [True] * (count - 1)


def test_a_share_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"prompt_share must be from 0 to 1; got 1\.5"):
        Replies(prompt_share=1.5)
