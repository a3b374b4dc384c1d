"""What both backends know of convolutions: in groups, by FFT, and by algorithms of users."""
