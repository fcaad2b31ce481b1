"""From texts to rows that a step is trained on."""
