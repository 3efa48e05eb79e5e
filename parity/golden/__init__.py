"""Golden traces: the reference recorded once, for checks of the port without it."""
