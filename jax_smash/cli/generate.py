"""`jax-smash generate`: continue prompts."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.interrupts import Interrupts
from jax_smash.cli.options import (
    DraftFlags,
    DtypeName,
    KeptPrograms,
    MeshText,
    OutputFlags,
    SamplingFlags,
    StoppingFlags,
    WeightsName,
    at_least,
    check_mesh,
)
from jax_smash.cli.records import RecordFile
from jax_smash.cli.resume import MADE_WITH, check_same, given_options, made_with
from jax_smash.cli.screen import Screen
from jax_smash.cli.smash_options import SmashFlags
from jax_smash.prompts import FilePrompt, checked_text, read_prompts

if TYPE_CHECKING:
    from jax_smash.decode.drafted import Drafted
    from jax_smash.decode.groups import Smashed
    from jax_smash.generation import Completion
    from jax_smash.loading import Model
    from jax_smash.session import TokenLogProb

SHOWN_DEPTHS = 8
"""Depths whose acceptance the summary shows."""

NO_PART_OF_IT = (
    *("model", "prompt", "prompts", "json", "resume", "overwrite", "stream", "compilation_cache"),
    *("json_schema", "save_warm_start"),
)
"""Options that change no completion, or are compared by what they name."""


@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue prompts."""

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "tiny"
    """A shipped model's name, a directory, or owner/model on the Hugging Face hub."""
    method: Annotated[str, tyro.conf.arg(metavar="METHOD")] = "ar"
    """How to decode: ar is plain decoding; recycling, lookup, suffix, lookahead, draft-model and hybrid draft;
    hamburger says several tokens at once and keeps them in one slot."""
    prompt: Annotated[str | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    """The text to continue."""
    prompts: Annotated[
        Path | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="FILE.jsonl", help_behavior_hint="")
    ] = None
    """Many prompts instead: {"prompt": …} a line, where … is text, token ids or chat messages."""
    chat: bool = False
    """Take a prompt as what a user says, and answer it."""
    num_samples: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Continuations of each prompt."""
    batch_size: Annotated[int, tyro.conf.arg(metavar="N")] = 8
    """Prompts that decode together."""
    dtype: DtypeName = "auto"
    """What weights and cache are held in; auto is the checkpoint's, and float32 for a shipped model."""
    weights: WeightsName = "plain"
    """int8 holds matrices as 8-bit integers, a scale for each output channel; plain holds them in --dtype."""
    mesh: MeshText = None
    """Devices to divide model and rows over: data, fsdp and tp, as in fsdp=4,tp=2. A CPU makes as many as it needs."""
    compilation_cache: KeptPrograms = True
    """Keep compiled programs in the user's cache directory, so that the next start is faster."""
    stopping: tyro.conf.OmitArgPrefixes[StoppingFlags] = dataclasses.field(default_factory=StoppingFlags)
    sampling: tyro.conf.OmitArgPrefixes[SamplingFlags] = dataclasses.field(default_factory=SamplingFlags)
    draft: tyro.conf.OmitArgPrefixes[DraftFlags] = dataclasses.field(default_factory=DraftFlags)
    smash: tyro.conf.OmitArgPrefixes[SmashFlags] = dataclasses.field(default_factory=SmashFlags)
    output: tyro.conf.OmitArgPrefixes[OutputFlags] = dataclasses.field(default_factory=OutputFlags)

    def run(self) -> None:
        """Checks everything that can be checked without the model, then decodes.

        Raises:
          UsageError: options are out of range, or do not go together.
          ValueError, OSError: as `read_prompts`, `jax_smash.load` and `jax_smash.generate` say.
        """
        self._check()
        schema = self.stopping.schema()
        file, overwrite = self.output.json, self.output.overwrite
        records = RecordFile(file, overwrite=overwrite, resume=self.output.resume) if file else None
        prompts = self._prompts()
        sampling = self.sampling.options()
        options = self.draft.options(self.method, overwrite=self.output.overwrite), self.smash.options(self.method)
        live = self.output.stream and self.num_samples == 1 and min(self.batch_size, len(prompts)) == 1
        made_with = self._made_with(prompts, schema) if records is not None else {}
        done = 0 if records is None else self._done(records, made_with, len(prompts) * self.num_samples)
        with Screen(
            prompts=len(prompts), samples=self.num_samples, stream=live, keep_going=records is not None, done=done
        ) as screen:
            if records is None:
                self._decode(prompts, sampling, options, schema, screen, None, made_with)
            elif records.whole:
                screen.summary(f"{records.path} is whole: {done} of {done} texts were there before")
            else:
                with records:
                    self._decode(prompts, sampling, options, schema, screen, records, made_with)

    def _check(self) -> None:
        if (self.prompt is None) == (self.prompts is None):
            got = "neither" if self.prompt is None else "both"
            raise UsageError(f"exactly one of --prompt and --prompts is needed; got {got}")
        at_least("--num-samples", self.num_samples, 1)
        at_least("--batch-size", self.batch_size, 1)
        check_mesh(self.mesh)
        self.stopping.check()
        self.output.check(saving=self.draft.save_warm_start is not None)

    def _prompts(self) -> list[FilePrompt]:
        if self.prompts is not None:
            return read_prompts(self.prompts)
        assert self.prompt is not None
        if not self.prompt:
            raise UsageError("--prompt must not be empty")
        return [checked_text(self.prompt)]

    def _made_with(self, prompts: list[FilePrompt], schema: str | None) -> dict[str, Any]:
        """Returns what decides the completions, as it is written to a file's first line and compared on --resume."""
        from jax_smash.loading import find

        draft = self.draft.draft_model
        drafts = {} if draft in (None, "int8") else {"draft_model": find(str(draft))}
        read = {"modules": self.smash.modules, "lookup_corpus": self.draft.lookup_corpus}
        paths = {name: path for name, path in read.items() if path is not None} | drafts
        start = self.draft.warm_start
        known = {} if start is None else {"warm_start": start if start.exists() else None}
        options = given_options(self, without=(*NO_PART_OF_IT, *paths, *known))
        if schema is not None:
            options["json_schema"] = schema
        return made_with(
            self.model, options=options, prompts=prompts, paths={"model": find(self.model)} | paths | known
        )

    def _done(self, records: RecordFile, made_with: dict[str, Any], total: int) -> int:
        """Returns how many completions are there already."""
        kept = records.kept
        where = records.path if records.whole else records.partial
        try:
            if kept.lines:
                check_same(kept.made_with, made_with, where)
        except UsageError:
            if not (records.whole and self.output.overwrite):
                raise
            records.start_anew()
            return 0
        if kept.lines > total or (records.whole and kept.lines < total):
            raise UsageError(f"--resume: {where} must hold {total} completions; it holds {kept.lines}")
        return kept.lines

    def _decode(
        self,
        prompts: list[FilePrompt],
        sampling: Any,
        options: tuple[Any, Any],
        schema: str | None,
        screen: Screen,
        records: RecordFile | None,
        made_with: dict[str, Any],
    ) -> None:
        done = 0 if records is None else records.kept.lines
        if records is not None and done == len(prompts) * self.num_samples:
            screen.summary(f"{records.path} is whole: {done} of {done} texts were there before")
            return
        screen.waiting(f"loading {self.model}")
        from jax_smash.cli.compilation_cache import use_compilation_cache
        from jax_smash.decode.programs import PROGRAMS
        from jax_smash.generation import generate
        from jax_smash.loading import load
        from jax_smash.platform import prepare_devices
        from jax_smash.sharding import add_virtual_devices

        use_compilation_cache(self.compilation_cache)
        add_virtual_devices(self.mesh)
        prepare_devices()
        dtype = None if self.dtype == "auto" else self.dtype
        draft, smash = options
        modules = self.smash.modules_for(self.model, self.method, smash)
        model = load(self.model, dtype=dtype, weights=self.weights, mesh=self.mesh, modules=modules)
        screen.waiting("compiling, and reading the prompt")
        screen.progress()
        made: list[Completion] = []
        interrupts = Interrupts()

        def tokens(count: int) -> None:
            interrupts.check()
            screen.tokens(count)

        def finish(completion: "Completion") -> None:
            # The file first: text that was shown is never lost from it.
            if records is not None:
                fields = record(completion, model, sampled=self.num_samples > 1)
                records.write(fields if done + len(made) else fields | {MADE_WITH: made_with})
            screen.completion(done + len(made), completion)
            made.append(completion)

        began, compiled = time.perf_counter(), PROGRAMS.seconds
        with interrupts:
            generate(
                model,
                prompts,
                method=self.method,
                draft=draft,
                smash=smash,
                max_new_tokens=self.stopping.max_new_tokens,
                sampling=sampling,
                stop=self.stopping.stops(),
                json_schema=schema,
                regex=self.stopping.regex,
                log_probs=self.output.logprobs,
                prompt_log_probs=self.output.prompt_logprobs,
                num_samples=self.num_samples,
                seed=self.sampling.seed,
                batch_size=self.batch_size,
                chat=self.chat,
                skip=done,
                on_text=screen.text if screen.stream else None,
                on_tokens=tokens,
                on_completion=finish,
            )
        line = summary(made, time.perf_counter() - began, PROGRAMS.seconds - compiled)
        screen.summary(line + (f", {done} texts were there before" if done else ""))


def record(completion: "Completion", model: "Model", *, sampled: bool) -> dict[str, Any]:
    """Returns a completion as it is written to a JSON line.

    Args:
      completion: what to write.
      model: its tokenizer names the tokens of log-probabilities.
      sampled: prompts have several continuations, so each says which it is.
    """
    fields = {f.name: getattr(completion, f.name) for f in dataclasses.fields(completion)}
    if not sampled:
        del fields["sample"]
    drafted = fields.pop("drafted")
    if drafted is not None:
        fields["drafted"] = dataclasses.asdict(drafted) | {"acceptance": drafted.acceptance}
    smashed = fields.pop("smashed")
    if smashed is not None:
        fields["smashed"] = dataclasses.asdict(smashed) | {"output_compression": smashed.output_compression}
    for name in ("log_probs", "prompt_log_probs"):
        entries = fields.pop(name)
        if entries is not None:
            fields[name.replace("log_probs", "logprobs")] = [_entry(e, _namer(model)) for e in entries]
    return fields


def summary(completions: list["Completion"], seconds: float, compiled: float) -> str:
    """Returns one line on how long everything took: `seconds` in all, `compiled` of them spent on compilation."""
    tokens = sum(c.new_tokens for c in completions)
    forwards = sum(c.target_forwards for c in completions)
    rates = [c.tokens_per_second for c in completions if c.tokens_per_second is not None]
    parts = [f"{tokens} new tokens in {seconds - compiled:.2f} s"]
    if len(completions) > 1:
        parts.append(f"{tokens / (seconds - compiled):.1f} tokens/s in all")
    if rates:
        parts.append(f"{sum(rates) / len(rates):.1f} tokens/s a text")
    if forwards:
        accepted = sum((c.mean_accepted_tokens or 0) * c.target_forwards for c in completions)
        parts.append(f"{accepted / forwards:.2f} accepted a forward")
    parts += _drafts([c.drafted for c in completions if c.drafted is not None])
    parts += _slots([c.smashed for c in completions if c.smashed is not None])
    parts.append(f"first token after {1e3 * max(c.time_to_first_token_s for c in completions):.0f} ms")
    parts.append(f"compiling took {compiled:.1f} s more")
    return ", ".join(parts)


def _drafts(drafted: list["Drafted"]) -> list[str]:
    """Returns what a summary says of drafts: nodes a step, and the share that was kept of those tried, by depth."""
    if not drafted:
        return []
    nodes = sorted({d.nodes for d in drafted})
    tried = [sum(counts) for counts in zip(*(d.tried for d in drafted), strict=True)]
    kept = [sum(counts) for counts in zip(*(d.kept for d in drafted), strict=True)]
    shares = [f"{k / t:.0%}" for k, t in zip(kept, tried, strict=True) if t]
    said = f"{'–'.join(map(str, (nodes[0], nodes[-1])[: len(nodes)]))} drafted nodes a step ({drafted[0].source})"
    if not shares:
        return [said]
    return [said, f"kept by depth {' '.join(shares[:SHOWN_DEPTHS])}{' …' if len(shares) > SHOWN_DEPTHS else ''}"]


def _slots(smashed: list["Smashed"]) -> list[str]:
    """Returns what a summary says of fused slots."""
    slots = sum(s.slots for s in smashed)
    return [f"{sum(s.tokens for s in smashed) / slots:.2f} tokens a slot of the output"] if slots else []


def _namer(model: "Model") -> Callable[[int], dict[str, Any]]:
    if model.tokenizer is None:
        return lambda token: {"token_id": token}
    return lambda token: {"token_id": token, "token": model.tokenizer.decode([token])}


def _entry(entry: "TokenLogProb", name: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    top = [name(token) | {"logprob": value} for token, value in entry.top]
    return name(entry.token) | {"logprob": entry.log_prob, "top": top}
