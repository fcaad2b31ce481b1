"""`python -m jax_smash`."""

from jax_smash.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
