"""Automata over tokens: stop strings, regular expressions and JSON schemas; and the text that tokens stand for."""

from jax_smash.automaton.grammar import json_schema_automaton, regex_automaton
from jax_smash.automaton.stops import StreamDecoder, cut, held_back, stop_automaton
from jax_smash.automaton.tables import DEAD, FREE, START, TokenAutomaton, join
from jax_smash.automaton.vocabulary import TokenBytes, token_bytes

__all__ = [
    "DEAD",
    "FREE",
    "START",
    "StreamDecoder",
    "TokenAutomaton",
    "TokenBytes",
    "cut",
    "held_back",
    "join",
    "json_schema_automaton",
    "regex_automaton",
    "stop_automaton",
    "token_bytes",
]
