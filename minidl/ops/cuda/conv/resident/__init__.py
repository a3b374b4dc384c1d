"""Whole images in shared memory: each is read once, and what follows the convolution goes on in the same launch."""
