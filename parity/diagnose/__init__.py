"""Why a call goes wrong, found by experiment; some of these files need no torch."""
