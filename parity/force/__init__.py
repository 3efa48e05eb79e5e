"""One side run with the other's values."""
