"""How a video goes through a model: chunks of frames, slices, tiles, streams."""
