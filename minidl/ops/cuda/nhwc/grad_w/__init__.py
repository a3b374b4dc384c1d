"""Gradients of the filters of convolutions of images in NHWC."""
