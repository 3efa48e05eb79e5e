"""Each autoencoder beside its reference, for `parity`: the importer of parity and PyTorch."""
