"""NumPy primitives of layers and losses."""
