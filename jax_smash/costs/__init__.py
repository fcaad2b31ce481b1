"""What a forward over several entries costs: measured and stored, or estimated."""

from jax_smash.costs.curve import CostCurve
from jax_smash.costs.estimate import assumed_costs, estimate_costs
from jax_smash.costs.follow import Follower
from jax_smash.costs.stopping import StoppingFollower
from jax_smash.costs.store import load_costs, read_costs, save_costs

__all__ = [
    "CostCurve",
    "Follower",
    "StoppingFollower",
    "assumed_costs",
    "estimate_costs",
    "load_costs",
    "read_costs",
    "save_costs",
]
