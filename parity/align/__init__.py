"""Calls of the reference and the calls of the port that correspond to them."""
