"""Options of a run, checked, and the modules they choose."""
