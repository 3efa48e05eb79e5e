"""The machine and the process: versions, memory, precision, profiles, progress."""
