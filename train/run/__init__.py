"""How a part is trained, from its options to its export."""
