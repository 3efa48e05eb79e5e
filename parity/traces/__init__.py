"""Recorded references, and comparisons with them."""
