"""Makes what a recipe says, from data to a model card, by one command.

    python -m train.recipe train/recipes/tiny.json --input data=DATA --output OUT

A recipe (`train/stages/recipe_file.py`) lists programs of `train` and `eval` with their options. Each is a stage with a
folder, `OUT/STAGE`, and a log, `OUT/STAGE.log`. `OUT/recipe.lock.json` holds the hashes of the inputs, of each stage's
command and of each file that was made, with commits and versions. The same command goes on with what was cut off:
stages that are made are passed over, and one that was begun resumes where its program can. If an input, the recipe or
an output differs from the lock, nothing is run and the difference is named; `--relock` accepts it."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from jax_smash.cli.lists import NamedPaths
from train.run.program import run_program
from train.run.provenance import made_by
from train.stages.recipe_file import Recipe, Stage, load_recipe
from train.stages.recipe_lock import BEGUN, LOCK, MADE, Lock, hash_files, only_call, read_lock, write_lock
from train.stages.recipe_plan import Places, Plan, find_inputs, make_plan, new_entry
from train.stages.recipe_run import ending_on_sigterm, run_stage

TOLD = 5
"""Differences from a lock that are listed."""


def main(
    file: tyro.conf.Positional[Path],
    output: Path,
    input: NamedPaths = (),
    seed: int = 0,
    only: str | None = None,
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None,
    relock: bool = False,
    check: bool = False,
    dry_run: bool = False,
) -> None:
    """Makes what a recipe says.

    Args:
      file: the recipe.
      output: folder for all that is made; new, empty, or of the same recipe.
      input: files and folders that the recipe asks for, by name.
      seed: is added to the seed of every stage.
      only: make this stage alone, if it is not made; those that it reads must be.
      from_: make this stage again, and all behind it.
      relock: accept what differs from the lock. Outputs that changed stay as they are; stages that would be made
        otherwise now, or read what changed, are made again in place of what they had left.
      check: only verify inputs, recipe and outputs by the lock.
      dry_run: only print the commands that would be run.
    """
    recipe = load_recipe(file, seed)
    places = Places(recipe, find_inputs(recipe, input, output), output)
    again = _following(recipe, from_)
    if check or dry_run:
        plan = make_plan(places, old := read_lock(output), again=again)
        if check and old is None:
            raise FileNotFoundError(f"{output / LOCK} must be a recipe's lock; there is none")
        _accept(plan, output, relock=relock and not check)
        print(_verified(plan) if check else _commands(places, plan, only))
        return
    with ending_on_sigterm(), only_call(output) as held:
        plan = make_plan(places, read_lock(output), again=again)
        _accept(plan, output, relock=relock)
        due = _chosen(plan, recipe, only)
        write_lock(output, plan.lock)
        _make(places, plan.lock, due, held)


def _following(recipe: Recipe, first: str | None) -> list[str]:
    """Returns the names of a stage and of all behind it; of None, none."""
    if first is None:
        return []
    _check_stage(recipe, first)
    return recipe.names[recipe.names.index(first) :]


def _chosen(plan: Plan, recipe: Recipe, only: str | None) -> list[Stage]:
    """Returns the stages to make: all that are not made, or one of them."""
    due = plan.due(recipe)
    if only is None:
        return due
    _check_stage(recipe, only)
    chosen = [stage for stage in due if stage.name == only]
    if missing := [read for stage in chosen for read, sha in plan.lock.stages[stage.name].reads.items() if not sha]:
        raise ValueError(f"stage {only!r} reads {missing[0]}, which is not made yet")
    return chosen


def _check_stage(recipe: Recipe, name: str) -> None:
    if name not in recipe.names:
        raise ValueError(f"{recipe.path} has no stage {name!r}; it has {', '.join(recipe.names)}")


def _accept(plan: Plan, output: Path, *, relock: bool) -> None:
    """Refuses what differs from the lock.

    Raises:
      ValueError: something does.
    """
    if plan.differences and not relock:
        more = f"; and {len(plan.differences) - TOLD} more" if len(plan.differences) > TOLD else ""
        raise ValueError(
            f"{output / LOCK} was made with something else: {'; '.join(plan.differences[:TOLD])}{more} "
            "(--relock accepts it)"
        )


def _commands(places: Places, plan: Plan, only: str | None) -> str:
    due = _chosen(plan, places.recipe, only)
    lines = []
    for stage in places.recipe.stages:
        entry = plan.lock.stages[stage.name]
        resume = ["--resume"] if entry.state == BEGUN and stage.resumes else []
        command = shlex.join(["python", "-m", *places.command(stage), *resume])
        if stage in due or entry.state == MADE:
            lines.append(command if stage in due else f"# made: {command}")
    return "\n".join(lines)


def _verified(plan: Plan) -> str:
    """Returns what was found to be as the lock says, and the code that made it."""
    made = {name: entry for name, entry in plan.lock.stages.items() if entry.state == MADE}
    files = sum(len(entry.outputs) for entry in made.values())
    inputs = sum(len(hashes) for hashes in plan.lock.inputs.values())
    told = [f"as locked: {inputs} files read, {files} files of {len(made)} of {len(plan.lock.stages)} stages made"]
    for code in dict.fromkeys(code for entry in made.values() for code in entry.code):
        told.append(f"{', '.join(name for name, entry in made.items() if code in entry.code)}: {code}")
    return "\n".join(told)


def _make(places: Places, lock: Lock, due: Sequence[Stage], held: int) -> None:
    """Makes stages one after another."""
    console, stages = Console(stderr=True, soft_wrap=True, highlight=False), places.recipe.stages
    for number, stage in enumerate(stages, start=1):
        title = f"{number}/{len(stages)} {stage.name}"
        if stage in due:
            lock = _make_stage(places, lock, stage, title, console, held)
        else:
            console.print(f"{title}: {'made before' if lock.stages[stage.name].state == MADE else 'left out'}")
    print(f"made {places.output / due[-1].name}" if due else f"all of {places.output} was made before")


def _make_stage(places: Places, lock: Lock, stage: Stage, title: str, console: Console, held: int) -> Lock:
    """Makes a stage; the lock on disk knows of it as soon as it begins, and again as soon as it is whole."""
    path, words, before = places.output / stage.name, places.command(stage), lock.stages[stage.name]
    if resumes := before.state == BEGUN and stage.resumes:
        words.append("--resume")
    else:
        _clear(path)
    codes = dict.fromkeys([*before.code, made_by()] if resumes else [made_by()])
    entry = dataclasses.replace(new_entry(stage, lock), state=BEGUN, code=tuple(codes))
    write_lock(places.output, lock.with_entry(stage.name, entry))
    console.print(f"{title}: {shlex.join(['python', '-m', *words])}", markup=False)
    run_stage(stage.name, words, path, log := path.with_name(f"{stage.name}.log"), console, held)
    if not (outputs := hash_files(path)):
        raise ValueError(f"stage {stage.name!r} must make {path}; there is nothing, and its log is {log}")
    made = lock.with_entry(stage.name, dataclasses.replace(entry, state=MADE, outputs=outputs))
    write_lock(places.output, made)
    return made


def _clear(path: Path) -> None:
    """Removes what a stage made before, or what it left when it was cut off."""
    for left in (path, *path.parent.glob(f".{path.name}.part"), *path.parent.glob(f".{path.name}.*.part")):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif os.path.lexists(left):
            left.unlink()


if __name__ == "__main__":
    run_program(main)
