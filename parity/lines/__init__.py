"""The source lines at which two programs part, found by the values that they compute."""
