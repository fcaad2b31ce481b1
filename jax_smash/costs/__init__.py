"""What a forward over several entries costs: measured and stored, or estimated."""

from jax_smash.costs.curve import CostCurve
from jax_smash.costs.estimate import estimate_costs
from jax_smash.costs.store import load_costs, save_costs

__all__ = ["CostCurve", "estimate_costs", "load_costs", "save_costs"]
