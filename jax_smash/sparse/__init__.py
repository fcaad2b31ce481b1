"""Policies that keep or read a part of a cache, and models that decode by them."""

from jax_smash.sparse.butler import Butler
from jax_smash.sparse.controls import Dense, Oracle, Random, Recency
from jax_smash.sparse.drafting import PartDef, WholeDef, drafting_policy, self_drafting
from jax_smash.sparse.gate import PageGate
from jax_smash.sparse.grouped import GroupedButler
from jax_smash.sparse.h2o import H2O
from jax_smash.sparse.learned import Learned
from jax_smash.sparse.low_rank import LowRankKeys
from jax_smash.sparse.model import SparseDef, sparsified
from jax_smash.sparse.named import POLICIES, named_files, named_policy, named_whole, told
from jax_smash.sparse.pays import ChoiceCosts, choice_costs, paying, pays_from
from jax_smash.sparse.predictors import described
from jax_smash.sparse.quest import Quest
from jax_smash.sparse.selecting import Selecting
from jax_smash.sparse.snapkv import SnapKV
from jax_smash.sparse.streaming import StreamingLLM
from jax_smash.sparse.tokenselect import TokenSelect
from jax_smash.sparse.tova import TOVA
from jax_smash.sparse.traffic import SparseStepBytes, sparse_step_bytes

__all__ = [
    "H2O",
    "POLICIES",
    "TOVA",
    "Butler",
    "ChoiceCosts",
    "Dense",
    "GroupedButler",
    "Learned",
    "LowRankKeys",
    "Oracle",
    "PageGate",
    "PartDef",
    "Quest",
    "Random",
    "Recency",
    "Selecting",
    "SnapKV",
    "SparseDef",
    "SparseStepBytes",
    "StreamingLLM",
    "TokenSelect",
    "WholeDef",
    "choice_costs",
    "described",
    "drafting_policy",
    "named_files",
    "named_policy",
    "named_whole",
    "paying",
    "pays_from",
    "self_drafting",
    "sparse_step_bytes",
    "sparsified",
    "told",
]
