"""A program for tests of several hosts: joins them, compares a word, and tells what the first decides.

python -m tests.meeting_host --word WORD [--fail] [--jax VERSION] --coordinator … --num-processes … --process-id …
"""

import argparse
import sys
import time

from jax_smash.hosts import HostOptions, agree, decided, fail, is_first, join, join_hosts, loss_of_host


def main() -> None:
    """Joins the other hosts."""
    parser = argparse.ArgumentParser()
    for name, kind in (("coordinator", str), ("num-processes", int), ("process-id", int), ("start-timeout", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--word", default="alike")
    parser.add_argument("--jax", default="")
    parser.add_argument("--fail", action="store_true")
    words = parser.parse_args()
    if words.jax:
        found = join.versions()
        join.versions = lambda: found | {"jax": words.jax}
    try:
        join_hosts(
            HostOptions(words.coordinator, words.num_processes, words.process_id, words.start_timeout or 60),
        )
        agree({"--word": words.word})
        if words.fail:
            raise ValueError("the disk is full of stars")
        print(f"decided {decided(lambda: [words.process_id, words.word])}", file=sys.stderr)
        while words.word == "waits":
            time.sleep(0.1)
        print("first" if is_first() else "another")
    except Exception as error:
        fail(f"error: {loss_of_host(error) or error}")


if __name__ == "__main__":
    main()
