"""The autoencoders, each in a file or folder of its own, and what they return in common."""
