"""The pair of the Wan autoencoder: reference, ladder, known mistakes."""
