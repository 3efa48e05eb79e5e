"""The backward pass: recorded, measured, judged."""
