"""What users and other libraries meet beside ops and layers.

create.py makes Tensors, interchange.py shares memory with other libraries, habits.py says what to write for PyTorch's
names, display.py how things look; own.py takes primitives, activations and kernels of one's own, own_conv.py
convolution algorithms, which check_conv.py checks. layouts.py has convolutions in NHWC and CHWN, onnx.py writes nets,
plot/ draws runs, cli/ holds the commands.
"""
