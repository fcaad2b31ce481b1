"""A model's own answers to prompts, as documents to train on beside it.

    python -m train.regenerate --model MODEL --prompts PROMPTS.jsonl --output ANSWERS.jsonl --mesh fsdp=4

What drafts for a model or predicts its steps learns best from what the model itself says. `train.pack` reads
`ANSWERS.jsonl`: a chat a line, or a text where prompts are texts. A run that was cut off goes on with `--resume`.

`--avoid QUESTIONS.jsonl` leaves out prompts that an evaluation asks too: those that have thirteen words in a row of one
of its texts, whatever their case and what stands between them. How many these were stands in the first line's record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jax_smash.cli.generate import told
from jax_smash.cli.lists import Paths
from jax_smash.cli.records import RecordFile, resumed
from jax_smash.cli.resume import MADE_WITH, made_with
from jax_smash.hosts import HostOptions, agree, decided, is_first, join_hosts
from jax_smash.loading import Model, load, sources
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.generation import generate
from jax_smash.serve.prompts import FilePrompt
from jax_smash.serve.request import make_request
from jax_smash.serve.turn import Completion
from jax_smash.sharding import mesh_of_hosts
from train.data.overlap import AVOID, WORDS, digest, kept_prompts, read_avoided
from train.data.questions import read_questions
from train.run.options import JoinOptions
from train.run.program import file_in, make_devices, run_program, tell_in_log

GROUP = 64
"""Batches of a call of `generate`, whose completions are in memory at once."""

TOLD = 100
"""Answers between lines of a log."""

ANSWERS = "answers.jsonl"
"""File of the answers in a folder."""


def main(
    model: str,
    prompts: Paths,
    output: Path,
    avoid: Paths = (),
    chat: bool = False,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    num_samples: int = 1,
    seed: int = 0,
    method: str = "ar",
    batch_size: int = 8,
    dtype: str | None = None,
    mesh: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **hosts: Unpack[JoinOptions],
) -> None:
    """Writes a model's own answers to prompts. Several hosts decode them together, and the first one writes.

    Args:
      model: a model's name, a directory, a .gguf file, or owner/model on the Hugging Face hub.
      prompts: `.jsonl` or `.json` files of prompts, chats, questions or instructions, in the layouts that
        `train/data/questions.py` lists, or folders of such files. A reply at the end of a chat is written anew.
      output: `.jsonl` file of the answers; a name without an ending is a folder, which gets `answers.jsonl`.
      avoid: `.jsonl` files of evaluations' questions, as texts or with a field such as `turns` or `question`; prompts
        that share thirteen words in a row with one are left out.
      chat: a prompt that is text is what a user says.
      max_new_tokens: of an answer at most. Each line says why its answer ended (`finish_reason`).
      temperature: 0 takes the likeliest token each time.
      top_k, top_p: keep the likeliest tokens alone, so many or of so much probability; 0 and 1 keep all.
      num_samples: answers to each prompt.
      seed: of sampled answers.
      method: of decoding; those that draft write the same answers faster.
      batch_size: prompts that decode together.
      dtype: of the weights in memory, such as bfloat16; by default the checkpoint's.
      mesh: devices to divide model and rows over, as in `fsdp=4,tp=2`. A CPU makes as many as it needs.
      resume: go on with a run that was cut off.
      overwrite: the output may exist, and is replaced.
      hosts: how several of them are joined.
    """
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise ValueError(f"dtype must be float32, bfloat16 or float16; got {dtype!r}")
    if not prompts:
        raise ValueError("prompts must be at least one file; got none")
    processes = join_hosts(HostOptions(**hosts))
    asked = [question for path in prompts for question in read_questions(path)]
    asked, left_out = without_overlap(asked, avoid)
    records = RecordFile(answers_file(output), overwrite=overwrite, resume=resume) if is_first() else None
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    options = SamplingOptions(**sampling)
    given = {"max_new_tokens": max_new_tokens, "num_samples": num_samples, "method": method, "batch_size": batch_size}
    decides = given | sampling | {"chat": chat, "seed": seed, "dtype": dtype, "mesh": mesh} | left_out
    made = made_with(model, options=decides, prompts=asked, paths={"model": sources(model)})
    agree(told(made))
    total = len(asked) * num_samples
    done, whole = decided(lambda: (0, False) if records is None else (resumed(records, made, total), records.whole))
    if whole:
        print(f"{answers_file(output)} is whole: all {done} answers were there before")
        return
    make_devices(None, mesh, processes=processes)
    base = load(model, dtype=dtype, mesh=mesh or mesh_of_hosts())
    with records or contextlib.nullcontext():
        cut = _write(base, asked, records, made, seed=seed, done=done, chat=chat, sampling=options, **given)
    print(f"{total - done} answers written to {answers_file(output)}, {cut} of them cut at {max_new_tokens} tokens")


def answers_file(output: Path) -> Path:
    """Returns the file of the answers: what was given, or one in a folder, which is made."""
    if not output.suffix and is_first():
        output.mkdir(exist_ok=True)
    return file_in(output, ANSWERS)


def without_overlap(asked: list[FilePrompt], avoid: Sequence[Path]) -> tuple[list[FilePrompt], dict[str, Any]]:
    """Returns the prompts that evaluations do not ask, and what a record says of the others.

    Args:
      asked: all prompts.
      avoid: files of the evaluations; without any, all prompts are kept.

    Raises:
      OSError, ValueError: a file cannot be read, or no prompt is left.
    """
    if not avoid:
        return asked, {}
    kept = kept_prompts(asked, read_avoided(avoid))
    dropped = len(asked) - len(kept)
    print(f"{dropped} of {len(asked)} prompts left out: they share {WORDS} words in a row with what is avoided")
    files = [f"{path.name} {digest(path)}" for path in avoid]
    return kept, {AVOID: {"words": WORDS, "left_out": dropped, "of": len(asked), "sha256": files}}


def _write(
    base: Model,
    asked: list[FilePrompt],
    records: RecordFile | None,
    made: dict[str, Any],
    *,
    seed: int,
    done: int,
    num_samples: int,
    batch_size: int,
    chat: bool,
    **given: Any,
) -> int:
    """Writes the answers that are missing, each batch when it has ended; returns how many were cut at the most tokens.

    Args:
      base: the model.
      asked: all prompts.
      records: the file, entered; None on hosts that do not write.
      made: what decides the answers, for its first line.
      seed: of the first prompt; each has its own.
      done: answers that an earlier run made; the others are decoded in the batches that they would have been in.
      num_samples, batch_size, chat, given: as in `generate`.
    """
    # All prompts are checked before the first is answered, and one capacity of the cache serves them all.
    fits = {"stop": (), "json_schema": None, "regex": None, "seed": seed, "slots": None}
    checked = {name: given[name] for name in ("max_new_tokens", "sampling")}
    slots = make_request(base, asked, chat=chat, **checked, **fits).slots
    number, cut = done, 0
    with _progress() as progress:
        task = progress.add_task("", total=len(asked) * num_samples, completed=done, tokens=0)

        def write(answer: Completion) -> None:
            nonlocal number, cut
            if records is not None:
                records.write(document(base, answer, chat=chat) | ({} if number else {MADE_WITH: made}))
            number, cut = number + 1, cut + (answer.finish_reason == "length")
            progress.update(task, advance=1)
            if number % TOLD == 0:
                tell_in_log(progress, f"{number:,} of {len(asked) * num_samples:,} answers")

        def count(tokens: int) -> None:
            progress.update(task, tokens=progress.tasks[task].fields["tokens"] + tokens)

        group = GROUP * batch_size
        for first in range(done // num_samples // group * group, len(asked), group):
            some = asked[first : first + group]
            generate(
                base,
                some,
                seed=[seed + first + i for i in range(len(some))],
                skip=max(0, done - first * num_samples),
                slots=slots,
                num_samples=num_samples,
                batch_size=batch_size,
                chat=chat,
                on_tokens=count,
                on_completion=write,
                **given,
            )
    return cut


def document(model: Model, answer: Completion, *, chat: bool) -> dict[str, Any]:
    """Returns an answer as a line that `train.pack` reads, with its tokens and why it ended."""
    prompt, reply = answer.prompt, {"role": "assistant", "content": answer.text}
    told = {"token_ids": answer.token_ids, "finish_reason": answer.finish_reason}
    if isinstance(prompt, str):
        user = {"role": "user", "content": prompt}
        return ({"messages": [user, reply]} if chat else _text(prompt, answer.text)) | told
    if isinstance(prompt[0], dict):
        return {"messages": [*prompt, reply]} | told
    return _text(model.tokenizer.decode(prompt, skip_special_tokens=True), answer.text) | told


def _text(prompt: str, answer: str) -> dict[str, str]:
    """Returns a text, and its prompt, by which answers to one prompt are held out together."""
    return {"text": prompt + answer, "prompt": prompt}


def _progress() -> Progress:
    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True, quiet=not is_first()),
        disable=not is_first(),
    )


if __name__ == "__main__":
    run_program(main)
