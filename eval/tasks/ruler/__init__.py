"""RULER's thirteen tasks at any length, drawn by rule from our own words and sentences."""
