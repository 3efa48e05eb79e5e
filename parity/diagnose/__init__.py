"""The cause of a wrong call, found by experiment, and the location of its error."""
