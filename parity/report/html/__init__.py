"""A report as one HTML file that needs nothing else, and as a piece of a notebook."""
