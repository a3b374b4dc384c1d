"""The base of all else: the Tensor and its tape, devices, randomness; also checks of gradients.
Nothing is imported here, so that any file can import any of these."""
