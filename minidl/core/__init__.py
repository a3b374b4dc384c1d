"""What all else stands on: the Tensor and its tape, devices, randomness; beside them gradients checked and several
processes. Nothing is imported here, so that any file can import any of these."""
