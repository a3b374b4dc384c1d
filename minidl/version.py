"""The version of minidl, in one place for the package, its metadata and its weights files."""

__version__ = "0.1.0"
