"""Errors of matched calls: free-running, exclusive, inclusive, and the noise floor."""
