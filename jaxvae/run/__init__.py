"""A video's way through a model: chunks of frames, slices, tiles, streams."""
