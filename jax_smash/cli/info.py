"""`jax-smash info`: what a checkpoint holds, and what it costs to decode."""

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jax_smash.cli.errors import UsageError
from jax_smash.cli.options import WeightsName, at_least
from jax_smash.cli.sparse_options import SparseFlags

if TYPE_CHECKING:
    from jax_smash.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Info:
    """Describe a model without loading its weights."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model's name (tiny, smollm2), a directory, a .gguf file, or owner/model on the Hugging Face hub; or the folder
    of a drafter."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print a JSON object instead of a table."""
    slots: Annotated[
        int | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="S", help_behavior_hint="(default: 1024)")
    ] = None
    """Cache slots that a decode step is taken to read of each row, at most the model's context."""
    batch_size: Annotated[
        int | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 1)")
    ] = None
    """Rows that a decode step is taken to have; it reads the weights once for all."""
    weights: WeightsName = "plain"
    """How a decode step is taken to hold matrices: plain as they are stored, int8 as 8-bit integers."""
    sparse: tyro.conf.OmitArgPrefixes[SparseFlags] = dataclasses.field(default_factory=SparseFlags)

    def run(self) -> None:
        """Prints the description to stdout.

        Raises:
          UsageError: an option is out of range.
          FileNotFoundError: there is no such model.
          ValueError: its files are damaged or not supported.
        """
        slots = 1024 if self.slots is None else self.slots
        batch = 1 if self.batch_size is None else self.batch_size
        at_least("--slots", slots, 1)
        at_least("--batch-size", batch, 1)
        from jax_smash.cli.drafter_info import describe_drafter, drafter_rows

        drafter = describe_drafter(self.model)
        if drafter:
            self._check_alone()
        facts = drafter or describe(self.model, slots=slots, batch=batch, weights=self.weights, sparse=self.sparse)
        if self.json:
            print(json.dumps(facts, indent=2, ensure_ascii=False))
            return
        from rich.text import Text

        from jax_smash.cli.screen import Printed

        console = Printed(soft_wrap=True)
        for name, value in drafter_rows(facts) if drafter else rows(facts):
            console.print(Text.assemble((f"{name:<13}", "bold"), value))

    def _check_alone(self) -> None:
        """Raises UsageError where an option asks for a decode step, which a drafter's description has none of."""
        given = {"--slots": self.slots, "--batch-size": self.batch_size, "--sparse": self.sparse.policy()}
        given["--weights"] = None if self.weights == "plain" else self.weights
        if wrong := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{wrong[0]} goes with a model; {self.model} is a drafter")


def describe(
    name: str, *, slots: int, batch: int = 1, weights: str = "plain", sparse: SparseFlags | None = None
) -> dict[str, Any]:
    """Returns what there is to know of a model, from its configuration, file headers and tokenizer.

    Args:
      name: a model's name, a directory, a .gguf file or a hub id.
      slots: cache slots that a decode step is taken to read of each row; no more than the model's context count.
      batch: rows of that step.
      weights: how a decode step is taken to hold matrices, one of `quantise.WEIGHTS`.
      sparse: which slots it reads; None reads all.

    Raises:
      UsageError: a policy is out of range.
      FileNotFoundError: there is no such model.
      ValueError: a file of the model is damaged or not supported, or the policy does not go with it.
    """
    import jax

    from jax_smash.checkpoints.adapter import with_base
    from jax_smash.checkpoints.tokenizer import load_tokenizer, stop_tokens
    from jax_smash.loading import find
    from jax_smash.models.transformer import abstract_params
    from jax_smash.plan import step_bytes
    from jax_smash.quantise import quantise_params

    own = find(name)
    path, adapter = with_base(own, find)
    config, layout, stored, dtype = _stored(path)
    _, params = abstract_params(config, dtype)
    held = jax.eval_shape(quantise_params, params) if weights == "int8" else params
    slots = min(slots, config.max_positions)
    step = step_bytes(config, held, batch=batch, slots=slots)
    if adapter is not None:
        adapter.over(path, config)  # Refuses what does not fit.
    tokenizer = load_tokenizer(path) if adapter is None else load_tokenizer(own) or load_tokenizer(path)
    return {
        "model": name,
        "path": str(path),
        "layout": layout,
        "adapter": None
        if adapter is None
        else {"path": str(own), "ranks": list(adapter.ranks), "matrices": len(adapter.changes)},
        **_architecture(config),
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "bytes_by_dtype": stored,
        **_text(tokenizer, stop_tokens(path, config, tokenizer)),
        "cache_bytes_per_token": step_bytes(config, params, batch=1, slots=1).cache,
        "decode_step": {
            "batch": batch,
            "slots": slots,
            "dtype": dtype,
            "weights": weights,
            "weight_bytes": step.weights,
            "cache_bytes": step.cache,
            "bytes": step.total,
        },
        "sparse_step": _sparse_step(name, sparse, config, held, batch, slots),
    }


def _sparse_step(
    name: str, flags: SparseFlags | None, config: "ModelConfig", params: Any, batch: int, slots: int
) -> dict[str, Any] | None:
    """Returns what a decode step reads under a policy; None without one.

    Raises:
      ValueError: the policy does not go with the model.
    """
    policy = None if flags is None else flags.policy()
    if flags is None or policy is None:
        return None
    from jax_smash.planning.abstract import AbstractModel
    from jax_smash.sparse import Learned, described, sparse_step_bytes

    if isinstance(policy, Learned):
        policy = described(policy, name, config)
    policy.check(dataclasses.replace(AbstractModel(config).model(), name=name))
    step = sparse_step_bytes(config, params, policy, batch=batch, slots=slots)
    return {
        "policy": flags.sparse,
        "weight_bytes": step.weights,
        "cache_bytes": step.cache,
        "scorer_bytes": step.scorer,
        "predictor_bytes": step.predictor,
        "bytes": step.total,
        "speedup_bound": step.bound,
        "cache_speedup_bound": step.cache_bound,
    }


def rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns a description as names and values to read."""
    step = facts["decode_step"]
    kinds = Counter(facts["attention_kinds"])
    stops = [f"{s['token_id']}{' ' + repr(s['token']) if 'token' in s else ''}" for s in facts["stop_tokens"]]
    held = "" if step["weights"] == "plain" else f"{step['weights']} "
    tokenizer = "none: prompts must be tokens"
    if facts["tokenizer"]:
        template = "with" if facts["chat_template"] else "without"
        tokenizer = f"{facts['tokenizer']}, {facts['tokenizer_size']:,} tokens, {template} a chat template"
    return [
        ("path", f"{facts['path']} ({facts['layout']})"),
        *_adapter(facts["adapter"]),
        ("family", facts["family"]),
        ("parameters", f"{facts['parameters']:,}"),
        ("weights", ", ".join(f"{d} {_amount(n)}" for d, n in facts["bytes_by_dtype"].items())),
        ("layers", f"{facts['layers']}, width {facts['width']:,}, MLP {facts['mlp_width']:,}"),
        ("attention", f"{facts['heads']} heads of {facts['head_width']}, {facts['kv_heads']} for keys and values"),
        ("", ", ".join(f"{n} {k}" for k, n in kinds.items()) + _window(facts)),
        ("rope", "; ".join(f"{kind}: {_rope(rope)}" for kind, rope in facts["rope"].items()) + _unrotated(facts)),
        ("context", f"{facts['context']:,} positions"),
        ("vocabulary", f"{facts['vocabulary']:,}, head {'tied' if facts['tied_head'] else 'untied'}"),
        ("tokenizer", tokenizer),
        ("stop tokens", ", ".join(stops) or "none"),
        ("cache", f"{_amount(facts['cache_bytes_per_token'])} a token"),
        (
            "decode step",
            f"reads {_amount(step['bytes'])} at batch {step['batch']} in {step['dtype']}: {held}weights "
            f"{_amount(step['weight_bytes'])}, "
            f"{step['slots']:,} cache slots{' a row' if step['batch'] > 1 else ''} {_amount(step['cache_bytes'])}",
        ),
        *_sparse_row(facts["sparse_step"]),
    ]


def _sparse_row(step: dict[str, Any] | None) -> list[tuple[str, str]]:
    if step is None:
        return []
    weights = step["predictor_bytes"]
    predictor = f" and {_amount(weights)} of a predictor's weights" if weights else ""
    text = (
        f"{step['policy']} reads {_amount(step['bytes'])}: weights {_amount(step['weight_bytes'])}, chosen slots "
        f"{_amount(step['cache_bytes'])}, what chooses them {_amount(step['scorer_bytes'])}{predictor}; "
        f"at most {step['speedup_bound']:.3g} times the speed, {step['cache_speedup_bound']:.3g} of attention alone"
    )
    return [("sparse step", text)]


def _architecture(config: "ModelConfig") -> dict[str, Any]:
    return {
        "family": config.family,
        "layers": config.num_layers,
        "width": config.d_model,
        "mlp_width": config.mlp_width,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_width": config.head_width,
        "attention_kinds": list(config.layer_kinds),
        "window": config.window or None,
        "unrotated_layers": list(config.unrotated_layers),
        "rope": {kind: dataclasses.asdict(config.rope_of(kind)) for kind in config.kinds},
        "context": config.max_positions,
        "vocabulary": config.vocab_size,
        "tied_head": config.tied_head,
    }


def _text(tokenizer: Any, stops: tuple[int, ...]) -> dict[str, Any]:
    if tokenizer is None:
        stop_tokens = [{"token_id": token} for token in stops]
        return {"tokenizer": None, "tokenizer_size": None, "chat_template": False, "stop_tokens": stop_tokens}
    return {
        "tokenizer": type(tokenizer).__name__,
        "tokenizer_size": len(tokenizer),
        "chat_template": bool(tokenizer.chat_template),
        "stop_tokens": [{"token_id": token, "token": tokenizer.decode([token])} for token in stops],
    }


def _stored(path: Path) -> tuple["ModelConfig", str, dict[str, int], str]:
    """Returns the configuration, the layout's name, the bytes stored in each dtype, and the dtype of loaded weights."""
    from jax_smash.checkpoints import huggingface, orbax
    from jax_smash.checkpoints.gguf import GgufTensors, is_gguf, open_gguf
    from jax_smash.checkpoints.shards import Shards

    sizes: Counter[str] = Counter()
    if orbax.is_checkpoint(path):
        for array in orbax.metadata(path).values():
            sizes[str(array.dtype)] += math.prod(array.shape) * array.dtype.itemsize
        return orbax.read_config(path), "Orbax", dict(sizes), _most(sizes)
    config, _ = huggingface.read_config(path)
    if is_gguf(path):
        file = open_gguf(path)
        for tensor in file.tensors.values():
            sizes[tensor.tensor_type.name] += int(tensor.n_bytes)
        return config, "GGUF", dict(sizes), str(GgufTensors(file, config).dtype)
    shards = Shards(path)
    for name, dtype in shards.dtypes.items():
        sizes[str(dtype)] += math.prod(shards.shapes[name]) * dtype.itemsize
    return config, "Hugging Face", dict(sizes), _most(sizes)


def _most(sizes: Counter[str]) -> str:
    """Returns the dtype that most weights have; those of several dtypes are loaded as one."""
    return max(sizes, key=sizes.__getitem__)


def _adapter(adapter: dict[str, Any] | None) -> list[tuple[str, str]]:
    if adapter is None:
        return []
    ranks = ", ".join(map(str, adapter["ranks"]))
    return [("adapter", f"{adapter['path']} (LoRA of rank {ranks} on {adapter['matrices']} matrices)")]


def _window(facts: dict[str, Any]) -> str:
    return f" over {facts['window']:,} positions" if facts["window"] else ""


def _rope(rope: dict[str, Any]) -> str:
    scaling = "" if rope["scaling"] == "none" else f", {rope['scaling']} × {rope['factor']:g}"
    partial = "" if rope["partial"] == 1 else f", {rope['partial']:.0%} of each head"
    return f"base {rope['base']:,.0f}{scaling}{partial}"


def _unrotated(facts: dict[str, Any]) -> str:
    layers, without = facts["layers"], len(facts["unrotated_layers"])
    return f"; in {layers - without} of {layers} layers" if without else ""


def _amount(count: int) -> str:
    """Says a number of bytes with three digits."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"
