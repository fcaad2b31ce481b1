"""Options of `jax-smash generate`, by what they are about."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.lists import listed

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
WeightsName = Literal["plain", "int8"]
MeshText = Annotated[
    str | None,
    tyro.conf.DisallowNone,
    tyro.conf.arg(metavar="AXIS=N,…|PRESET", help_behavior_hint="(default: one device)"),
]


NONE = "none: name a method that drafts, as in --method hybrid"
"""Options of drafting that a method takes which drafts nothing."""


def _flag(metavar: str, hint: str | None = None) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


@dataclasses.dataclass(frozen=True)
class SamplingFlags:
    """Without --temperature, the likeliest token is taken each time."""

    temperature: Annotated[float, _flag("T")] = 0.0
    """0 takes the likeliest token; higher is more varied."""
    top_k: Annotated[int, _flag("K")] = 0
    """Keep the K likeliest tokens; 0 keeps all."""
    top_p: Annotated[float, _flag("P")] = 1.0
    """Keep the likeliest tokens that reach probability P together."""
    min_p: Annotated[float, _flag("P")] = 0.0
    """Keep tokens of at least P times the likeliest one's probability."""
    repetition_penalty: Annotated[float, _flag("R")] = 1.0
    """Above 1 makes tokens of prompt and text less likely."""
    presence_penalty: Annotated[float, _flag("X")] = 0.0
    """Taken from the logit of every token that the text holds."""
    frequency_penalty: Annotated[float, _flag("X")] = 0.0
    """Taken from a token's logit for each time the text holds it."""
    logit_bias: Annotated[tuple[str, ...], listed(str, "ID=VALUE")] = ()
    """Added to the logits of these tokens, e.g. 13=-5,262=2.5."""
    min_new_tokens: Annotated[int, _flag("N")] = 0
    """No stop token ends the text before this many tokens; a --stop string may."""
    seed: Annotated[int, _flag("N")] = 0
    """The same seed gives the same text."""

    def options(self) -> Any:
        """Returns the library's sampling options.

        Raises:
          UsageError: one is out of range.
        """
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed must be from 0 to {2**32 - 1}; got {self.seed}")
        from jax_smash.sampling import SamplingOptions

        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["seed"]
        fields["logit_bias"] = _bias(self.logit_bias)
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        try:
            made = SamplingOptions(**fields)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        if not made.sampled and (idle := [n for n in ("top_k", "top_p", "min_p") if fields[n] != usual[n]]):
            raise UsageError(f"--{idle[0].replace('_', '-')} goes with a --temperature above 0")
        return made


@dataclasses.dataclass(frozen=True)
class StoppingFlags:
    """A text also ends at the model's own stop tokens."""

    max_new_tokens: Annotated[int, _flag("N")] = 128
    """Tokens a text may have at most."""
    stop: Annotated[
        tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], _flag("TEXT", "(default: none, repeatable)")
    ] = ()
    """Strings that end a text; they and what follows are cut."""
    json_schema: Annotated[str | None, tyro.conf.DisallowNone, _flag("SCHEMA|@FILE", "")] = None
    """Hold the text to this JSON schema."""
    regex: Annotated[str | None, tyro.conf.DisallowNone, _flag("PATTERN", "")] = None
    """Hold the text, from first to last character, to this regular expression."""

    def check(self) -> None:
        """Checks what needs no file and no model.

        Raises:
          UsageError: an option is out of range, or two exclude each other.
        """
        at_least("--max-new-tokens", self.max_new_tokens, 1)
        if "" in self.stops():
            raise UsageError("--stop must not be empty")
        if self.json_schema is not None and self.regex is not None:
            raise UsageError("--json-schema and --regex exclude each other; got both")

    def stops(self) -> tuple[str, ...]:
        """Returns all stop strings, in the order given."""
        return tuple(text for group in self.stop for text in group)

    def schema(self) -> str | None:
        """Returns the JSON schema's text, from its file where one is named.

        Raises:
          OSError: its file cannot be read.
          UsageError: it is not JSON.
        """
        if self.json_schema is None:
            return None
        text, where = self.json_schema, "--json-schema"
        if text.startswith("@") or not text.lstrip().startswith(("{", "true", "false")):
            where = text.removeprefix("@")
            try:
                text = Path(where).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(f"{where} must be a JSON schema; it is no UTF-8 text") from error
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where} must be a JSON schema; at line {error.lineno}: {error.msg}") from error
        return text


@dataclasses.dataclass(frozen=True)
class DraftFlags:
    """For methods that draft. What is emitted does not depend on them, only how fast; but see --verify."""

    tree: Annotated[str, _flag("auto|chain-N|tree-N|confident-N|NAME|FILE.json|off", "(default: auto)")] = "auto"
    """The tree that a step drafts: auto sizes it by what is measured, off drafts nothing, chain-N is N tokens in a row,
    tree-N is N tokens in the shape that suits the method, NAME a template (recycling-80, the published tree of Token
    Recycling without one node), FILE.json lists the ranks that lead to each node: [[0], [1], [0, 0]]. confident-N is
    the N tokens that a trained drafter is surest of, another shape at each step;
    confident-N:depth=D,width=K,chain=false has other sizes than EAGLE-2's 6 and 10, or does without the drafter's
    greedy chain. With confident-N:least=P, and in a chain with chain-N:least=P, drafting stops where tokens would be
    kept with a lower probability, P from 0 to 1/3; what is not drafted takes a CPU hardly any time. Both go with
    eagle, medusa and chimera, and with hybrid and one of their drafters, which then drafts where suffix lookup finds
    nothing likely; chain-N:least=P also with lookup and suffix, which are the surer, the more of the text agrees."""
    costs: Annotated[Path | None, tyro.conf.DisallowNone, _flag("FILE", "")] = None
    """Size the trees of --tree auto by this file alone, whatever steps take: one that tune wrote, or the --json of an
    earlier run, whose choices are then made again on the same kind of device."""
    warm_start: Annotated[Path | None, tyro.conf.DisallowNone, _flag("FILE", "")] = None
    """Begin with what an earlier run knew of which token follows which, from its --save-warm-start."""
    save_warm_start: Annotated[Path | None, tyro.conf.DisallowNone, _flag("FILE", "")] = None
    """Write what this run knows at its end. May be the --warm-start file, which then grows from run to run;
    the first run, which finds none, begins cold."""
    lookup_corpus: Annotated[Path | None, tyro.conf.DisallowNone, _flag("PATH", "")] = None
    """Look up in these texts, a file or a folder, instead of in the prompt and the text so far."""
    draft_model: Annotated[str | None, tyro.conf.DisallowNone, _flag("MODEL", "")] = None
    """What --method draft-model drafts with: a model of the same vocabulary, int8 for this one's own int8 copy, or this
    one with a part of its cache, as in sparse:quest or sparse:h2o:budget=128; see --sparse. --method self-sparse, which
    drafts with this one's own cache, takes int8 alone."""
    drafter: Annotated[str | None, tyro.conf.DisallowNone, _flag("FOLDER", "")] = None
    """What --method eagle, medusa, chimera or dflash drafts with: a folder with eagle.json and eagle.safetensors (for
    EAGLE-1 and for other methods, the files of that name), or, but for hybrid, random for random weights, which tell
    what drafting costs. Without it they take the one that comes with the package for the model, if there is one;
    --method hybrid takes that as shipped:eagle."""
    gram_slots: Annotated[int, _flag("N")] = 0
    """Chimera looks up the codes of the last N different trigrams of each row. Drafts do not depend on it."""
    stored_probabilities: tyro.conf.FlagCreatePairsOff[bool] = False
    """Token Recycling keeps the probability of each successor too, and grows its trees by them."""

    verify: Annotated[str, _flag("NAME", "(default: coupling)")] = "coupling"
    """How drafts are checked where rows sample. coupling: the text is plain decoding's. For --method draft-model and
    dflash also rejection (classic speculative sampling; in a tree siblings differ), rejection-independent and k-seq:
    other texts of the same distribution. typical-lossy: likely tokens are kept, which is another distribution."""

    def options(self, method: str, model: str, *, overwrite: bool, sparse: Any = None) -> Any:
        """Returns the library's options of drafting.

        Args:
          method: that they are for.
          model: name of the target.
          overwrite: files may be replaced.
          sparse: policy that drafts alone read by.

        Raises:
          UsageError: the method is unknown or does not take an option, there is no such tree, or a file is in the way.
          OSError: a file that an option names is missing, or cannot be made.
        """
        from jax_smash.methods import OPTIONS, DraftOptions, check_draft, check_method, misfits, with_folder

        try:
            check_method(method)
        except ValueError as error:
            raise UsageError(f"--{error}") from error
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        options = DraftOptions(sparse=sparse, **fields | ({"warm_start": None} if self.begins_cold else {}))
        for name in misfits(method, options):
            taken = ", ".join(_flag_name(option) for option in OPTIONS.get(method, ()))
            raise UsageError(f"{_flag_name(name)} does not go with --method {method}, which takes {taken or NONE}")
        if method == "draft-model" and self.draft_model is None:
            raise UsageError("--method draft-model needs --draft-model: a model, or int8")
        try:
            check_draft(method, options)
            options = with_folder(method, options, model)
        except ValueError as error:
            raise UsageError(f"--{error}") from error
        if options.drafter is not None:
            from jax_smash.cli.drafter_fits import check_fits

            try:
                check_fits(method, options, model)
            except ValueError as error:
                raise UsageError(f"--drafter: {error}") from error
        saved = self.save_warm_start
        if saved is not None and saved.exists() and not overwrite and not self._grows:
            raise UsageError(f"--save-warm-start: {saved} exists; --overwrite permits replacing it")
        return options

    @property
    def begins_cold(self) -> bool:
        """Whether the file to begin with is one that this run will be the first to write."""
        return self._grows and not os.path.lexists(str(self.warm_start))

    @property
    def _grows(self) -> bool:
        """Whether the file that is written is the one that is read."""
        read, written = self.warm_start, self.save_warm_start
        return read is not None and written is not None and os.path.realpath(read) == os.path.realpath(written)


def _flag_name(option: str) -> str:
    return "--" + option.replace("_", "-")


@dataclasses.dataclass(frozen=True)
class OutputFlags:
    """Text goes to stdout, everything else to stderr."""

    stream: Annotated[bool, _flag("", "(default: on a terminal)")] = dataclasses.field(default_factory=_on_terminal)
    """Show text as it is made; of several prompts only with --batch-size 1."""
    json: Annotated[Path | None, tyro.conf.DisallowNone, _flag("OUT.jsonl", "")] = None
    """Write one JSON object a text, in order. The file appears when it is whole; until then see OUT.jsonl.partial."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue the --json file of a run that was ended early, behind its last whole line; begin it where there is none.
    Prompts, options and model must be the same."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --json and --save-warm-start replace a file."""
    logprobs: Annotated[int | None, tyro.conf.DisallowNone, _flag("N", "")] = None
    """Record in --json the log-probability of each token, and the N likeliest in its place."""
    prompt_logprobs: Annotated[int | None, tyro.conf.DisallowNone, _flag("N", "")] = None
    """Likewise of each prompt token after the first."""

    def check(self, *, saving: bool) -> None:
        """Checks that the options go together.

        Args:
          saving: another option names a file to write.

        Raises:
          UsageError: they do not, or one is out of range.
        """
        for name, value in (("--logprobs", self.logprobs), ("--prompt-logprobs", self.prompt_logprobs)):
            if value is not None:
                at_least(name, value, 0)
                if self.json is None:
                    raise UsageError(f"{name} is written to --json; give it a file")
        if self.resume and self.json is None:
            raise UsageError("--resume is about --json; give it a file")
        if self.overwrite and self.json is None and not saving:
            raise UsageError("--overwrite is about --json and --save-warm-start; give one a file")


def at_least(name: str, value: int, least: int) -> None:
    """Checks a number.

    Raises:
      UsageError: it is smaller than `least`.
    """
    if value < least:
        raise UsageError(f"{name} must be at least {least}; got {value}")


def check_mesh(text: str | None) -> None:
    """Checks the text of `--mesh`.

    Raises:
      UsageError: it is malformed, or names an unknown axis.
    """
    if text is None:
        return
    from jax_smash import sharding

    try:
        sharding.check_mesh(text)
    except ValueError as error:
        raise UsageError(f"--mesh: {error}") from error


def _bias(pairs: tuple[str, ...]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            token, added = int(name), float(value)
        except ValueError as error:
            raise UsageError(f"--logit-bias must be ID=VALUE with a token and a number; got {pair!r}") from error
        if token in bias:
            raise UsageError(f"--logit-bias must name each token once; got {token} twice")
        bias[token] = added
    return bias
