"""Drafters that are trained beside a frozen target."""
