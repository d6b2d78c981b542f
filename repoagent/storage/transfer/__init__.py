"""Bringing the files of a model to this machine, and private copies of them."""
