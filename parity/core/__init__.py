"""Records and plain helpers; no framework is imported here."""
