"""CUDA primitives of layers and losses, a folder per family."""
