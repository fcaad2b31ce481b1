"""Draft trees: their shapes, how large a tree pays, and how drafters make them."""
