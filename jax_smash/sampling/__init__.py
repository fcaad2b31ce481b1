"""From logits to tokens: options, logits processors, and the choice itself."""

from jax_smash.sampling.choice import check_seeds, choose, gumbel_noise, highest, likeliest, log_probabilities, row_keys
from jax_smash.sampling.options import SamplingOptions, processors_for
from jax_smash.sampling.penalties import Constrained, LogitBias, MinNewTokens, OutputPenalty, RepetitionPenalty
from jax_smash.sampling.processing import process
from jax_smash.sampling.truncation import MinP, Temperature, TopK, TopP
from jax_smash.sampling.vocabulary import Likeliest, likeliest_of, likeliest_tokens

__all__ = [
    "Constrained",
    "Likeliest",
    "LogitBias",
    "MinNewTokens",
    "MinP",
    "OutputPenalty",
    "RepetitionPenalty",
    "SamplingOptions",
    "Temperature",
    "TopK",
    "TopP",
    "check_seeds",
    "choose",
    "gumbel_noise",
    "highest",
    "likeliest",
    "likeliest_of",
    "likeliest_tokens",
    "log_probabilities",
    "process",
    "processors_for",
    "row_keys",
]
