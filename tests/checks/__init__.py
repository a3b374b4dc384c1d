"""What tests in several folders check, and compute-sanitizer runs: of the CUDA backend, and of compiled steps."""
