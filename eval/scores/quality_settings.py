"""What `eval.quality` is asked to measure."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Literal

from eval.reports.options import Decimals, NamedPaths, Names, Numbers, check_least
from eval.reports.report import check_outputs
from eval.scores.quality_rows import Contender
from eval.scores.smashing import smash_options
from eval.tasks.catalogue import TASKS, chosen_tasks
from jax_smash.loading import modules_options
from jax_smash.methods import check_method, check_smash, fitting_modules
from jax_smash.quantise import check_weights
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse import Selecting, SnapKV, named_policy

HAMBURGER = "hamburger"

NOT_MEASURED = ("json", "details", "plot", "resume", "overwrite")
"""Settings that no score depends on."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures quality.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      methods: names of our decoding methods.
      base: model that every row is compared with, under `ar` with plain weights, and that is measured first; by default
        rows are compared with `ar` and plain weights where these are measured, else with the first.
      tasks: coreference, key_value, copying, arithmetic, state (together `recall`), babi, gsm8k, perplexity, wikitext,
        variety (whether continuations go in circles), piqa, arc_easy, arc_challenge, openbookqa, winogrande, hellaswag;
        `all` takes those of them whose examples are at hand. Others take long: perplexity_decoded and locations, whose
        tokens are read by a decode step each, and RULER's (together `ruler`): ruler-niah_single_1, ruler-niah_single_2,
        ruler-niah_single_3, ruler-niah_multikey_1, ruler-niah_multikey_2, ruler-niah_multikey_3, ruler-niah_multivalue,
        ruler-niah_multiquery, ruler-vt, ruler-cwe, ruler-fwe, ruler-qa_1, ruler-qa_2.
      data: examples of a task from elsewhere, as TASK=PATH or TASK=OWNER/NAME[:CONFIGURATION[:SPLIT]] on the hub;
        of ruler-qa_1 and ruler-qa_2 a file in SQuAD's or HotpotQA's form.
      lengths: of drawn examples, in the model's tokens; RULER's, new tokens included, take some 300 to 800 at least.
      count: examples of each set, at most those of its file; by default 100 where they are drawn, and the whole of a
        file.
      counts: of some tasks' sets, as TASK=N, in place of `count`.
      seed: of drawn examples.
      shots: solved questions before each in babi and gsm8k, by default 2 and 5, and of multiple choice, by default 0.
      chat: ask in the model's chat template, where the model writes the answer.
      max_new_tokens: of a gsm8k answer or a continuation of variety; by default 256 and 128.
      context: tokens that a text may have, new ones included; by default the model's own. What does not fit is cut
        behind the beginning and counted.
      stride: new tokens of each window of a text longer than the context, in perplexities; by default half a
        window. Where it is the context or more, windows lie side by side.
      batch_size: texts that are read or decoded together.
      dtype: of the weights.
      weights: plain, int8 (every matrix as 8-bit integers), or both.
      mesh: devices to divide the model and its rows over, as in fsdp=4,tp=2; a CPU makes as many as it needs.
        Or a preset, which divides all that there are: dp, fsdp, tp or fsdp+tp.
      modules: HAMburger modules, folders; by default those beside the model. Each is measured. Where a folder holds a
        base, which was trained with its modules, they decode with that one; methods without modules decode with the
        first folder's, and `base` names another to compare with.
      confidence: of hamburger: a group goes on where the modules are at least so sure that it does; a row each. By
        default as the modules were calibrated, like the next ones.
      token_confidence: likewise, a group ends before a token that they are less sure of; a row each for each of both.
      smash_mode, micro_steps, micro_head, least_rows: of hamburger, as in `jax-smash generate`; but a row of a batch is
        decoded as it is alone.
      sparse: policies that caches are read by, as in `jax-smash generate --sparse`, a row each, beside `ar` with the
        whole cache. With `:prompt=stepwise` they also read prompts step by step. What chooses slots needs it in tasks
        that score given text: perplexity, wikitext and multiple choice. perplexity_decoded and locations have no prompt
        at whose end snapkv could vote, and need `snapkv:rolling=true`.
      kv_budget, page_size: of the policies.
      json: file to write.
      details: file for the score of every example, one JSON object a line.
      plot: picture to write, a PNG.
      resume: keep the tasks that an earlier run with the same options has finished, if there was one.
      overwrite: replace files that exist.
    """

    model: str = "tiny"
    methods: Names = ("ar",)
    base: str | None = None
    tasks: Names = ("recall",)
    data: NamedPaths = ()
    lengths: Numbers = (128, 512)
    count: int | None = None
    counts: Names = ()
    seed: int = 0
    shots: int | None = None
    chat: bool = False
    max_new_tokens: int | None = None
    context: int | None = None
    stride: int | None = None
    batch_size: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    weights: Names = ("plain",)
    mesh: str | None = None
    modules: Names = ()
    confidence: Decimals = ()
    token_confidence: Decimals = ()
    smash_mode: str | None = None
    micro_steps: int | None = None
    micro_head: str | None = None
    least_rows: int = 1
    sparse: Names = ()
    kv_budget: str | None = None
    page_size: int | None = None
    json: Path | None = None
    details: Path | None = None
    plot: Path | None = None
    resume: bool = False
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown.
          FileExistsError, FileNotFoundError: an output file cannot be written.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        for name in ("methods", "lengths", "weights"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one; got none")
        for method in self.methods:
            check_method(method)
        for smash in self._smashes():
            check_smash(HAMBURGER, smash)
        decoded = [task for task in self.counted() if TASKS[task].decoded]
        if HAMBURGER in self.methods and decoded:
            raise ValueError(f"{decoded[0]} is read by plain decoding, not by {HAMBURGER}")
        if not self.sparse and (self.kv_budget is not None or self.page_size is not None):
            raise ValueError("kv_budget and page_size go with sparse")
        for policy in self.sparse:
            self._check_policy(policy)
        if HAMBURGER not in self.methods and (names := self._given()):
            raise ValueError(f"{names[0]} goes with method {HAMBURGER} alone; got {', '.join(self.methods)}")
        for folder in self._folders():
            fitting_modules(self.model, folder, *self._smashes())
        for weights in self.weights:
            check_weights(weights)
        check_least(self, count=1, shots=0, max_new_tokens=1, context=2, stride=1, batch_size=1)
        if min(self.lengths) < 1:
            raise ValueError(f"lengths must be at least 1; got {min(self.lengths)}")
        check_outputs(self.json, self.details, plot=self.plot, overwrite=self.overwrite)
        if self.resume and self.json is None:
            raise ValueError("resume goes with --json FILE, beside which finished tasks are kept")
        partial = self.partial()
        if partial is not None and partial.exists() and not (self.resume or self.overwrite):
            raise FileExistsError(
                f"an earlier run's finished tasks are in {partial}: --resume keeps them, --overwrite starts again"
            )

    def sources(self) -> dict[str, str]:
        """Returns where the examples of each chosen task come from.

        Raises:
          ValueError: a task is unknown or has no examples, or `data` is malformed.
        """
        data = {}
        for given in self.data:
            task, equals, source = given.partition("=")
            if not (task and equals and source):
                raise ValueError(f"data must be TASK=PATH or TASK=OWNER/NAME; got {given!r}")
            data[task] = source
        return chosen_tasks(self.tasks, data)

    def counted(self) -> dict[str, int | None]:
        """Returns how many examples each chosen task has; None for as many as it has by default.

        Raises:
          ValueError: as of `sources`, or `counts` is malformed or names a task that is not chosen.
        """
        found: dict[str, int | None] = dict.fromkeys(self.sources(), self.count)
        for given in self.counts:
            task, equals, count = given.partition("=")
            if not (task and equals and count.isdecimal() and int(count)):
                raise ValueError(f"counts must be TASK=N, each N at least 1; got {given!r}")
            if task not in found:
                raise ValueError(f"a count is given for {task}, which is not among the tasks {', '.join(found)}")
            found[task] = int(count)
        return found

    def partial(self) -> Path | None:
        """Returns where finished tasks are kept until the report is written; None where there is no report."""
        return None if self.json is None else self.json.with_name(f"{self.json.name}.partial")

    def contenders(self) -> list[Contender]:
        """Returns what is measured, the baseline first, those that share weights side by side."""
        folders: list[str | None] = [*self._folders()] or [None]
        policies: list[Any] = [(name, self.kv_budget, self.page_size) for name in self.sparse] or [()]
        wanted = [
            Contender(self.model, weights, method, folder, smash, *policy)
            for weights in self.weights
            for folder in folders
            for method in (self.methods if folder == folders[0] else (HAMBURGER,))
            for smash in (self._smashes(folder) if method == HAMBURGER else [None])
            for policy in policies
        ]
        usual = Contender(self.base or self.model, "plain", "ar", None if self.base else folders[0])
        baseline = usual if self.base is not None or self.sparse or usual in wanted else wanted[0]
        return sorted(dict.fromkeys([baseline, *wanted]), key=lambda c: (c.loaded != baseline.loaded, c != baseline))

    def _check_policy(self, text: str) -> None:
        """Refuses a policy that would leave a task to dense decoding."""
        policy = named_policy(text, budget=self.kv_budget, page_size=self.page_size)
        if not isinstance(policy, Selecting):
            return
        given, decoded = ([task for task in self.counted() if getattr(TASKS[task], n)] for n in ("given", "decoded"))
        rolling = ":rolling=true" if isinstance(policy, SnapKV) and not policy.rolling else ""
        if given and not policy.stepwise:
            raise ValueError(
                f"sparse must read the texts of {given[0]} step by step, as in {text}{rolling}:prompt=stepwise: "
                f"{text} reads them densely"
            )
        if decoded and rolling:
            raise ValueError(
                f"sparse must vote while {decoded[0]} is decoded, as in {text}{rolling}: {text} votes at the end of a "
                "prompt, and there is none"
            )

    def _folders(self) -> list[str]:
        return list(dict.fromkeys(self.modules or ("auto",))) if HAMBURGER in self.methods else []

    def _smashes(self, folder: str | None = None) -> list[SmashOptions]:
        """Returns what each row of some modules decodes with; without a folder, what is asked of all of them."""
        sure = itertools.product(self.confidence or (None,), self.token_confidence or (None,))
        asked = [smash_options(self, confidence=stop, token_confidence=token) for stop, token in sure]
        if folder is None:
            return asked
        own = modules_options(self.model, folder)
        return list(dict.fromkeys(options.settled(own) for options in asked))

    def _given(self) -> list[str]:
        names = ("modules", "confidence", "token_confidence", "smash_mode", "micro_steps", "micro_head", "least_rows")
        return [f.name for f in dataclasses.fields(self) if f.name in names and getattr(self, f.name) != f.default]
