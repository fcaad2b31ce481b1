"""HAMburger: several tokens in one slot of the cache, several tokens out of one forward of the base."""
