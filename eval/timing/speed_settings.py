"""What `eval.speed` is asked to measure."""

import dataclasses
from pathlib import Path
from typing import Literal

from eval.exact.reference import require_torch
from eval.reports.options import ONE_ROW, Names, Numbers, Peers, check_least
from eval.reports.report import check_output
from eval.scores.smashing import smash_options
from jax_smash.loading import Model
from jax_smash.methods import OPTIONS, DraftOptions, check_draft, check_method, check_smash
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import check_weights
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse import Selecting, named_policy, paying
from jax_smash.tracing import check_folder

BASELINE, HAMBURGER = "ar", "hamburger"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures tokens a second.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      random_init: a preset's name (llama-100m, llama-3.2-1b, llama-3.1-8b, …) or a directory with a config.json:
        a real shape with random weights, in place of a model.
      methods: names of our methods. `ar` is always measured too, for speed-ups are against it.
      prompts: file of prompts, one {"prompt": …} a line; by default stories that come with the program.
      prompt_tokens: prompts of this many random tokens, in place of a file; 64 for a random model.
      text_tokens: prompts of this many tokens of books, in place of a file: long ones, for caches.
      num_prompts: prompts to take; by default the whole file, or one batch of random ones or of books.
      chat: text prompts are a user's message, put into the model's chat template.
      batch_size: prompts that decode together.
      max_new_tokens: of each prompt.
      dtype: of the weights.
      weights: int8 measures the methods with int8 weights, modules included, against `ar` with plain ones on the same
        prompts.
      mesh: devices to divide the model and its rows over, as in fsdp=4,tp=2; a CPU makes as many as it needs.
        Or a preset, which divides all that there are: dp, fsdp, tp or fsdp+tp.
      tree: that methods which draft are given, as in `jax-smash generate --tree`.
      warm_start: a file that `jax-smash generate --save-warm-start` wrote, for methods that take it.
      lookup_corpus: texts that methods which take it look up in.
      draft_model: what draft-model drafts with, a model's name or int8.
      stored_probabilities: recycling grows its trees by stored probabilities.
      verify: how sampled drafts are checked, as in `jax-smash generate --verify`.
      modules: HAMburger modules, a folder; by default those beside the model. Where the folder holds a base, which was
        trained with them, every method decodes with that one.
      smash_mode, confidence, token_confidence, micro_steps, micro_head, least_rows: of hamburger, as in `jax-smash
        generate`; by default as the modules were calibrated.
      group_lengths: measures hamburger with groups that all have so many tokens too, whatever the stop head says, and
        from them the cost of a micro-step and the speed-up that it allows. A random model gets random modules.
      micro_layers: of random modules.
      sparse: measures the methods with caches read by this policy, as in `jax-smash generate --sparse`, against
        `ar` with the whole cache. Of self-sparse only drafts read by it.
      kv_budget, page_size: of the policy.
      sparse_from: slots from which a step chooses what it reads, as in `jax-smash generate --sparse-from`; by default
        from where that is faster on this device. 0 always chooses.
      ignore_stop: decode on past stop tokens, so that every method does the same work.
      repeats: of everything; medians count.
      settle_seconds: pause before each run, in which the other framework's idle threads stop spinning.
      peers: other programs to run on the same weights and prompts; transformers-lookup takes one prompt at a time.
      bandwidth_mebibytes: size of the array by which read bandwidth is measured; by default 1 GiB on a CPU.
      profile: folder to write a trace of the measured runs to.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str | None = None
    random_init: str | None = None
    methods: Names = (BASELINE,)
    prompts: Path | None = None
    prompt_tokens: int | None = None
    text_tokens: int | None = None
    num_prompts: int | None = None
    chat: bool = False
    batch_size: int = 1
    max_new_tokens: int = 128
    dtype: Literal["float32", "bfloat16"] = "float32"
    weights: Literal["plain", "int8"] = "plain"
    mesh: str | None = None
    tree: str = "auto"
    warm_start: Path | None = None
    lookup_corpus: Path | None = None
    draft_model: str | None = None
    stored_probabilities: bool = False
    verify: str = "coupling"
    modules: str | None = None
    smash_mode: str | None = None
    confidence: float | None = None
    token_confidence: float | None = None
    micro_steps: int | None = None
    micro_head: str | None = None
    least_rows: int | None = None
    group_lengths: Numbers = ()
    micro_layers: int = 4
    sparse: str | None = None
    kv_budget: str | None = None
    page_size: int | None = None
    sparse_from: int | None = None
    ignore_stop: bool = True
    repeats: int = 5
    settle_seconds: float = 0.2
    peers: Peers = ()
    bandwidth_mebibytes: int | None = None
    profile: Path | None = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range, two exclude each other, or a peer is not installed.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if (self.model is None) == (self.random_init is None):
            raise ValueError(f"give either --model or --random-init; got {self.model} and {self.random_init}")
        sources = {"--prompts": self.prompts, "--prompt-tokens": self.prompt_tokens, "--text-tokens": self.text_tokens}
        if len(given := [name for name, value in sources.items() if value is not None]) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other; got both")
        if self.text_tokens is not None and self.random_init is not None:
            raise ValueError("text_tokens needs the tokenizer of a model; a random one has none")
        check_least(
            self,
            batch_size=1,
            max_new_tokens=2,
            repeats=1,
            settle_seconds=0,
            prompt_tokens=1,
            text_tokens=1,
            num_prompts=1,
            bandwidth_mebibytes=1,
        )
        check_weights(self.weights)
        self.policy()
        for method in self.methods:
            check_method(method)
            check_draft(method, self.draft(method))
            check_smash(method, self.smash(method))
        for name in self._given():
            if not any(name in OPTIONS.get(method, ()) for method in self.methods):
                raise ValueError(f"{name} goes with none of the methods {', '.join(self.methods)}")
        if not self.smashes and smash_options(self) != SmashOptions():
            raise ValueError(f"options of {HAMBURGER} go with none of the methods {', '.join(self.methods)}")
        if HAMBURGER in self.methods and self.random_init is not None:
            raise ValueError(f"random_init has no trained modules for {HAMBURGER}: give group_lengths in its place")
        if (least := min(*self.group_lengths, self.micro_layers, 1)) < 1:
            raise ValueError(f"group_lengths and micro_layers must be at least 1; got {least}")
        if self.group_lengths and self.weights != "plain":
            raise ValueError(f"group_lengths goes with plain weights; got {self.weights}")
        if self.group_lengths and self.sparse is not None:
            raise ValueError(f"group_lengths goes with the whole cache; got sparse {self.sparse}")
        if self.group_lengths and self.smash_mode not in (None, "blind"):
            raise ValueError(f"group_lengths goes with smash_mode blind; got {self.smash_mode}")
        for length in self.group_lengths:
            smash_options(self, group_length=length, mode="blind").check()
        if self.modules is not None and (self.random_init is not None or not self.smashes):
            raise ValueError(f"modules goes with {HAMBURGER} and with trained modules alone; got {self.modules}")
        if self.batch_size > 1 and set(self.peers) & set(ONE_ROW):
            raise ValueError(f"batch_size must be 1 beside {', '.join(ONE_ROW)}; got {self.batch_size}")
        if self.peers:
            require_torch()
        check_folder(self.profile)
        check_output(self.json, overwrite=self.overwrite)

    def draft(self, method: str) -> DraftOptions:
        """Returns those options of drafting that a method takes."""
        taken = OPTIONS.get(method, ())
        drafting = {"sparse": self.policy()} if "sparse" in taken else {}
        return DraftOptions(**{name: getattr(self, name) for name in self._given() if name in taken}, **drafting)

    def policy(self) -> SparsePolicy | None:
        """Returns the policy that caches are read by; None for the whole.

        Raises:
          ValueError: an option of it is wrong, or goes with a policy alone.
        """
        if self.sparse is None:
            if (self.kv_budget, self.page_size, self.sparse_from) != (None, None, None):
                raise ValueError("kv_budget, page_size and sparse_from go with sparse")
            return None
        policy = named_policy(self.sparse, budget=self.kv_budget, page_size=self.page_size)
        if self.sparse_from is None:
            return policy
        if not isinstance(policy, Selecting):
            raise ValueError(f"sparse_from goes with a policy that chooses slots; got {self.sparse}")
        return dataclasses.replace(policy, pays_from=self.sparse_from)

    def policy_for(self, model: Model) -> SparsePolicy | None:
        """Returns the policy for a model that is loaded: short texts are read whole, unless `sparse_from` says else."""
        policy = self.policy()
        if policy is None or self.sparse_from is not None:
            return policy
        return paying(policy, model, batch=self.batch_size)

    @property
    def smashes(self) -> bool:
        """Whether HAMburger is measured, and needs modules."""
        return HAMBURGER in self.methods or bool(self.group_lengths)

    def smash(self, method: str) -> SmashOptions:
        """Returns the options of HAMburger, which no other method takes."""
        return smash_options(self) if method == HAMBURGER else SmashOptions()

    def _given(self) -> list[str]:
        # A policy goes with every method.
        fields = [f for f in dataclasses.fields(DraftOptions) if hasattr(self, f.name) and f.name != "sparse"]
        return [f.name for f in fields if getattr(self, f.name) != f.default]
