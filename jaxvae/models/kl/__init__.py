"""The autoencoder of images, file by file beside diffusers' `autoencoder_kl.py` and `vae.py`."""
