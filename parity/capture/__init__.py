"""Recording both sides: calls, arrays, layout, and what is restored afterwards."""
