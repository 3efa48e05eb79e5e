"""Code of another file, which a port calls."""


def halved(x):
    return x / 2
