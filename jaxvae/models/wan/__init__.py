"""The Wan video autoencoder, file by file beside diffusers' `autoencoder_kl_wan.py`."""
