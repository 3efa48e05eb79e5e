"""Where a model runs and what is compiled for it: sharding, programs kept and made ahead."""
