"""The version of minidl, in one place for the package, its metadata and its weights files."""

__version__ = "0.2.0"
