"""What is shown, and where."""

import contextlib
import io
import os
import sys
import types

import pytest

from jax_smash.cli.screen import Screen


def show(screen: Screen, *texts: str) -> None:
    with screen:
        screen.progress()
        for number, text in enumerate(texts):
            screen.tokens(len(text))
            if screen.stream:
                for letter in text:
                    screen.text(number, letter)
            screen.completion(number, types.SimpleNamespace(text=text))


def replace_stdout(monkeypatch) -> io.BytesIO:
    """Puts a stdout of the encoding that an old terminal has, and returns what it gets."""
    got = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(got, encoding="ascii"))
    return got


@pytest.mark.parametrize("stream", [False, True])
def test_one_text_stands_alone_and_several_get_a_heading(monkeypatch, stream):
    got = replace_stdout(monkeypatch)
    show(Screen(prompts=1, samples=1, stream=stream, keep_going=False), "one")
    show(Screen(prompts=2, samples=1, stream=stream, keep_going=False), "two", "three")
    show(Screen(prompts=1, samples=2, stream=stream, keep_going=False), "four", "")
    assert got.getvalue().decode().split("\n") == [
        "one",
        "== prompt 0 ==",
        "two",
        "== prompt 1 ==",
        "three",
        "== prompt 0, sample 0 ==",
        "four",
        "== prompt 0, sample 1 ==",
        "",
        "",
    ]


def test_what_the_terminal_cannot_show_becomes_a_question_mark(monkeypatch):
    got = replace_stdout(monkeypatch)
    show(Screen(prompts=1, samples=1, stream=False, keep_going=False), "naïve 十")
    assert got.getvalue() == b"na?ve ?\n"


def test_a_line_that_an_error_interrupts_is_ended(monkeypatch):
    got = replace_stdout(monkeypatch)
    with Screen(prompts=1, samples=1, stream=True, keep_going=False) as screen:
        screen.text(0, "half a")
    assert got.getvalue() == b"half a\n"


def test_where_nobody_reads_it_stops_or_goes_on_as_asked(monkeypatch):
    for keep_going in (True, False):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as unread:
            monkeypatch.setattr(sys, "stdout", unread)
            with contextlib.nullcontext() if keep_going else pytest.raises(BrokenPipeError):
                show(Screen(prompts=2, samples=1, stream=False, keep_going=keep_going), "text", "more")


def test_no_bar_and_no_spinner_where_stderr_is_no_terminal(capsys):
    screen = Screen(prompts=2, samples=1, stream=False, keep_going=False)
    screen.waiting("loading")
    show(screen, "one", "two")
    screen.note("2 new tokens")
    assert capsys.readouterr().err == "2 new tokens\n"
