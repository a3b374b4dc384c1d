"""Convolutions of images in NHWC, and the gradients of their images."""
