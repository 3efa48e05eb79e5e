"""One case from capture to faults, and all cases to a report."""
