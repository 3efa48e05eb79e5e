"""Optional checks of a case: compiled run, emulation, non-finite values, coverage of inputs."""
