"""Converters of networks, whose frameworks write ONNX themselves, in an environment and a jail."""
