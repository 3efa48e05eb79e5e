"""The reference's side of a comparison, kept from one run to the next by what decides it."""
