"""CogVideoX beside diffusers' model."""
