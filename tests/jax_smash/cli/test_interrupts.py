import contextlib
import os
import signal
import sys
import threading

import pytest

from jax_smash.cli.interrupts import Interrupts

pytestmark = pytest.mark.usefixtures("default_interrupts")


def test_an_interrupt_that_somebody_swallowed_is_raised_again():
    with Interrupts() as interrupts:
        interrupts.check()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()


def test_an_interrupt_that_python_drops_is_raised_again_without_a_word(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))

    class Finalised:
        def __init__(self, act):
            self.act = act

        def __del__(self):
            self.act()

    with Interrupts() as interrupts:
        Finalised(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        Finalised(lambda: 1 // 0)
    Finalised(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert told == [ZeroDivisionError, KeyboardInterrupt]


def test_an_interrupt_is_raised_at_once_and_the_handler_put_back():
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_what_others_make_of_it_stays(handler):
    signal.signal(signal.SIGINT, handler)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.check()
    assert signal.getsignal(signal.SIGINT) is handler


def test_another_thread_changes_nothing():
    found = []

    def enter():
        with Interrupts() as interrupts:
            interrupts.check()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
