"""An oracle that may not take back what it left out: what eviction costs, however well it is chosen."""

from jax_smash.sparse import Oracle


class EvictingOracle(Oracle):
    """Chooses as the oracle does among the slots that are left, and evicts all others.

    Source: TokenButler, appendix D, figure 12 (oracle with prefill eviction).
    """

    evicts = True
