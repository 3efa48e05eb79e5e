"""Files: weights in and out, checkpoints, videos."""
