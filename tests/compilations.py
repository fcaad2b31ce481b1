"""What a child process compiles and what it finds on disk: scripts that begin with `COUNTING` and end with `COUNTS`."""

COUNTING = """
import collections, sys
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))
"""
COUNTS = """
print(counts["compile_requests_use_cache"], counts["cache_hits"], flush=True)
"""
COMMAND = COUNTING + "from jax_smash.cli import main; print(main(sys.argv[1:]))" + COUNTS
"""`jax-smash`. The last line that it prints: programs, and how many of them came from disk."""
