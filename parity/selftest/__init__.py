"""The harness tried on known mistakes."""
