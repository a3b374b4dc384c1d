"""Layers: Modules with a `forward` of one op or a few. `minidl.nn` has their names."""
