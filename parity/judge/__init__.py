"""Verdicts of rows, and the faults among them."""
