"""What the autoencoders are built of: convolutions, norms, resizing, arithmetic."""
