"""Data sets: by name, or from a user's own files. `minidl.data` has their names."""
