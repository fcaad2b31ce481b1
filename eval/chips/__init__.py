"""Programs that are compiled for chips that are not at hand, and what they say."""
