"""Convolutions of images in NHWC on the tensor cores."""
