"""Stands before the package of this name; see ``cuda/bindings/runtime.py``."""
