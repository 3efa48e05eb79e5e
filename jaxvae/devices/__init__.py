"""Sharding over devices, and programs that are compiled ahead and kept."""
