"""The CogVideoX video autoencoder, file by file beside diffusers' `autoencoder_kl_cogvideox.py`."""
