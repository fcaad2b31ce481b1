"""`jax-smash generate`: continue prompts."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.host_options import HostFlags
from jax_smash.cli.interrupts import Interrupts
from jax_smash.cli.options import (
    DraftFlags,
    DtypeName,
    MeshText,
    OutputFlags,
    SamplingFlags,
    StoppingFlags,
    WeightsName,
    at_least,
    check_mesh,
)
from jax_smash.cli.program_options import ProgramFlags
from jax_smash.cli.records import RecordFile, resumed
from jax_smash.cli.resume import MADE_WITH, given_options, made_with
from jax_smash.cli.screen import Screen
from jax_smash.cli.smash_options import HAMBURGER, SmashFlags
from jax_smash.cli.sparse_options import SELF_SPARSE, SparseFlags
from jax_smash.cli.summary import summary
from jax_smash.serve.prompts import FilePrompt, checked_text, read_prompts

if TYPE_CHECKING:
    from jax_smash.loading import Model
    from jax_smash.serve.session import TokenLogProb
    from jax_smash.serve.turn import Completion

NO_PART_OF_IT = (
    *("model", "prompt", "prompts", "json", "resume", "overwrite", "stream", "compilation_cache", "programs"),
    *("profile", "json_schema", "save_warm_start", "coordinator", "num_processes", "process_id", "start_timeout"),
)
"""Options that change no completion, or are compared by what they name."""


@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue prompts."""

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "tiny"
    """A model's name (tiny, smollm2), a directory, a .gguf file, or owner/model on the Hugging Face hub."""
    method: Annotated[str, tyro.conf.arg(metavar="METHOD")] = "ar"
    """How to decode: ar is plain decoding; recycling, lookup, suffix, lookahead, draft-model, hybrid,
    eagle, medusa, chimera, dflash and self-sparse draft; hamburger says several tokens at once and keeps them in one
    slot."""
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
    """Devices to divide model and rows over: data, fsdp and tp, as in fsdp=4,tp=2. A CPU makes as many as it needs.
    Or a preset, which divides all devices at hand: dp, fsdp, tp or fsdp+tp."""
    profile: Annotated[Path | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Write a trace of the run into this folder, to be looked at in TensorBoard or Perfetto."""
    stopping: tyro.conf.OmitArgPrefixes[StoppingFlags] = dataclasses.field(default_factory=StoppingFlags)
    sampling: tyro.conf.OmitArgPrefixes[SamplingFlags] = dataclasses.field(default_factory=SamplingFlags)
    draft: tyro.conf.OmitArgPrefixes[DraftFlags] = dataclasses.field(default_factory=DraftFlags)
    smash: tyro.conf.OmitArgPrefixes[SmashFlags] = dataclasses.field(default_factory=SmashFlags)
    sparse: tyro.conf.OmitArgPrefixes[SparseFlags] = dataclasses.field(default_factory=SparseFlags)
    output: tyro.conf.OmitArgPrefixes[OutputFlags] = dataclasses.field(default_factory=OutputFlags)
    kept: tyro.conf.OmitArgPrefixes[ProgramFlags] = dataclasses.field(default_factory=ProgramFlags)
    hosts: tyro.conf.OmitArgPrefixes[HostFlags] = dataclasses.field(default_factory=HostFlags)

    def run(self) -> None:
        """Checks everything that can be checked without the model, then decodes. Of several hosts the first one writes.

        Raises:
          UsageError: options are out of range, or do not go together.
          ValueError, OSError: as `read_prompts`, `jax_smash.load` and `jax_smash.generate` say.
        """
        self._check()
        schema, prompts = self.stopping.schema(), self._prompts()
        sampling = self.sampling.options()
        processes = self.hosts.join()  # Before the devices are in use, as by the tree that an option names.
        drafts = self._drafts()
        options = drafts, self.smash.options(self.method)
        from jax_smash.hosts import agree, decided, is_first

        file, overwrite = self.output.json if is_first() else None, self.output.overwrite
        records = RecordFile(file, overwrite=overwrite, resume=self.output.resume) if file else None
        told_of = self.output.json is not None or processes > 1
        made_with = self._made_with(prompts, schema, drafts.drafter) if told_of else {}
        agree(told(made_with))
        # Decided by the first: where it has no terminal others may, and the calls of the loop must be alike.
        live = self.output.stream and self.num_samples == 1 and min(self.batch_size, len(prompts)) == 1
        live = decided(lambda: live)
        total = len(prompts) * self.num_samples
        done = decided(lambda: 0 if records is None else resumed(records, made_with, total))
        with Screen(
            prompts=len(prompts),
            samples=self.num_samples,
            stream=live,
            keep_going=records is not None,
            done=done,
            quiet=not is_first(),
        ) as screen:
            if self.draft.begins_cold:
                screen.note(f"{self.draft.warm_start} is not there yet: this run begins cold, and writes it at its end")
            if done < total or (records is not None and not records.whole):
                with records or contextlib.nullcontext():
                    self._decode(prompts, sampling, options, schema, screen, records, made_with, done)
            if done == total:
                screen.note(f"{self.output.json} is whole: all {done} texts were there before")
                if self.draft.save_warm_start is not None:
                    screen.note(f"{self.draft.save_warm_start} is not written: no text was left to learn from")

    def _check(self) -> None:
        if (self.prompt is None) == (self.prompts is None):
            got = "neither" if self.prompt is None else "both"
            raise UsageError(f"exactly one of --prompt and --prompts is needed; got {got}")
        at_least("--num-samples", self.num_samples, 1)
        _check_profile(self.profile)
        at_least("--batch-size", self.batch_size, 1)
        check_mesh(self.mesh)
        self.kept.check(self.model)
        self.stopping.check()
        self.sparse.policy()
        self.output.check(saving=self.draft.save_warm_start is not None)

    def _drafts(self) -> Any:
        """Returns the options of drafting; of self-sparse drafts, with the policy that these alone read by."""
        sparse = self.sparse.policy() if self.method == SELF_SPARSE else None
        return self.draft.options(self.method, self.model, overwrite=self.output.overwrite, sparse=sparse)

    def _prompts(self) -> list[FilePrompt]:
        if self.prompts is not None:
            return read_prompts(self.prompts)
        assert self.prompt is not None
        if not self.prompt:
            raise UsageError("--prompt must not be empty")
        return [checked_text(self.prompt)]

    def _made_with(self, prompts: list[FilePrompt], schema: str | None, drafter: str | Path | None) -> dict[str, Any]:
        """Returns what decides the completions, as it is written to a file's first line and compared on --resume."""
        from jax_smash.checkpoints.smasher import MODULES
        from jax_smash.loading import find, find_modules, sources

        paths: dict[str, Path | Sequence[Path] | None] = {"model": sources(self.model)}
        if self.smash.modules is not None or self.method == HAMBURGER:
            paths["modules"] = find_modules(self.model, self.smash.modules or "auto")
        if self.draft.draft_model not in (None, "int8") and not str(self.draft.draft_model).startswith("sparse:"):
            paths["draft_model"] = find(str(self.draft.draft_model))
        if drafter not in (None, "random"):
            paths["drafter"] = Path(str(drafter)).expanduser()
        if self.draft.tree.endswith(".json"):
            paths["tree"] = Path(self.draft.tree)
        if self.draft.costs is not None:
            paths["costs"] = self.draft.costs
        paths |= self._policy_files()
        if self.draft.lookup_corpus is not None:
            paths["lookup_corpus"] = self.draft.lookup_corpus
        if self.draft.warm_start is not None:
            paths["warm_start"] = None if self.draft.begins_cold else self.draft.warm_start
        options = given_options(self, without=(*NO_PART_OF_IT, *paths))
        if schema is not None:
            options["json_schema"] = schema
        return made_with(self.model, options=options, prompts=prompts, paths=paths, without=MODULES)

    def _policy_files(self) -> dict[str, Path]:
        """Returns the files of the policies of the cache and of drafts, by what a user calls them."""
        from jax_smash.methods import SPARSE
        from jax_smash.sparse import named_files

        drafts = str(self.draft.draft_model)
        texts = {"sparse": self.sparse.sparse, "draft_model": drafts if drafts.startswith(SPARSE) else None}
        return {
            f"{option} {what}": path
            for option, text in texts.items()
            if text is not None
            for what, path in named_files(text.removeprefix(SPARSE), self.model).items()
        }

    def _decode(
        self,
        prompts: list[FilePrompt],
        sampling: Any,
        options: tuple[Any, Any],
        schema: str | None,
        screen: Screen,
        records: RecordFile | None,
        made_with: dict[str, Any],
        done: int,
    ) -> None:
        if done == len(prompts) * self.num_samples:
            return
        screen.waiting(f"loading {self.model}")
        from jax_smash.decode.programs import PROGRAMS
        from jax_smash.hosts import processes
        from jax_smash.loading import load
        from jax_smash.platform import prepare_devices
        from jax_smash.serve.generation import generate
        from jax_smash.sharding import add_virtual_devices, mesh_of_hosts
        from jax_smash.tracing import traced

        add_virtual_devices(self.mesh, processes=processes())
        prepare_devices()
        self.kept.begin(self.model)
        dtype = None if self.dtype == "auto" else self.dtype
        draft, smash = options
        modules = self.smash.modules_for(self.model, self.method, smash)
        model = load(self.model, dtype=dtype, weights=self.weights, mesh=self.mesh or mesh_of_hosts(), modules=modules)
        if model.tokenizer is None and self.output.json is None:
            raise UsageError(f"{self.model} has no tokenizer to show texts with; --json FILE writes their tokens")
        if self.method != HAMBURGER:  # Of the modules' folder, the base alone is wanted.
            model = dataclasses.replace(model, modules=None, params={"target": model.params["target"]})
        policy, said = self.sparse.policy_for(model, batch=min(self.batch_size, len(prompts)), method=self.method)
        if self.method == SELF_SPARSE:
            draft = dataclasses.replace(draft, sparse=policy)
        elif policy is not None:
            from jax_smash.sparse import sparsified

            model = sparsified(model, policy)
        if said is not None:
            screen.note(said)
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
        with interrupts, traced(self.profile):
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
        took = time.perf_counter() - began, PROGRAMS.seconds - compiled
        screen.note(summary(made, *took, before=done, base=None if modules is None else model.source))


def _check_profile(folder: Path | None) -> None:
    if folder is not None:
        from jax_smash.tracing import check_folder

        check_folder(folder)


def told(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what decides completions by names that a user knows, for several hosts to compare."""
    options = {f"--{name.replace('_', '-')}": value for name, value in made_with.get("options", {}).items()}
    return options | {f"the {name}'s hash": digest for name, digest in made_with.get("sha256", {}).items()}


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


def _namer(model: "Model") -> Callable[[int], dict[str, Any]]:
    if model.tokenizer is None:
        return lambda token: {"token_id": token}
    return lambda token: {"token_id": token, "token": model.tokenizer.decode([token])}


def _entry(entry: "TokenLogProb", name: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    top = [name(token) | {"logprob": value} for token, value in entry.top]
    return name(entry.token) | {"logprob": entry.log_prob, "top": top}
