"""Layers that autoencoders share: convolutions, norms, activations, resizing, arithmetic."""
