"""HAMburger's modules beside a base."""
