"""TODO: what lies here, and in which order to read it."""
