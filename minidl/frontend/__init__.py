"""What users and other libraries meet beside ops and layers.

create.py makes Tensors, interchange.py shares memory with other libraries, habits.py says what to write for PyTorch's
names, display.py how things look; own.py takes primitives, activations and kernels of one's own.
"""
