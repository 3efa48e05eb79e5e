"""Why a call goes wrong, found by experiment, and where; some of these files need no torch."""
