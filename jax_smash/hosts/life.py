"""Signs of life of the processes of one program, so that one that was killed is named before JAX ends the others."""

from collections.abc import Mapping

from jax_smash.hosts.store import ROOT, processes, read_all, service, tell

ALIVE = f"{ROOT}/alive"
"""Under which each process counts."""

SIGN_S = 3
"""Seconds between two signs of life."""

SILENT_S = 15
"""Seconds without one after which a process is named. JAX, whose own threads count longer, then ends the program."""


class Silence:
    """Notices which processes give no more signs of life."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[str, float]] = {}
        self._named: set[int] = set()

    def named(self, signs: Mapping[int, str], now: float) -> list[int]:
        """Returns the processes that have just been silent for `SILENT_S`; each is named once.

        Args:
          signs: the last sign of each process.
          now: seconds, by any clock that only goes forward.
        """
        for process, sign in signs.items():
            if self._heard.get(process, ("", 0.0))[0] != sign:
                self._heard[process] = sign, now
                self._named.discard(process)
        silent = [p for p, (_, at) in sorted(self._heard.items()) if now - at >= SILENT_S and p not in self._named]
        self._named |= {*silent}
        return silent


def give_sign(number: int) -> None:
    """Tells the others that this process lives, by a number that it has not told before."""
    tell(f"{ALIVE}/{service().process_id}", str(number), again=True)


def silent_ones(silence: Silence, now: float) -> str | None:
    """Returns what is to be told of processes that have just fallen silent; None where there are none."""
    silent = silence.named(read_all(ALIVE), now)
    if not silent:
        return None
    which = f"process {silent[0]}" if len(silent) == 1 else f"processes {', '.join(map(str, silent))}"
    return f"{which} of {processes()} gave no sign of life for {SILENT_S} s: killed, or out of reach"
