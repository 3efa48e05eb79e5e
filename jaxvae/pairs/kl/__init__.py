"""The pair of the autoencoder of images: reference, ladder, known mistakes."""
