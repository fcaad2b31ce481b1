"""Draft trees: what proposes them, and what keeps of them what plain decoding would have said."""
