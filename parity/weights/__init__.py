"""The reference's tensors and the port's: which hold the same numbers, and what is wrong."""
