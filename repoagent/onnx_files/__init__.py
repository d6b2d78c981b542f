"""ONNX files, walked tag by tag without a decoder: what they name, and what opening one may cost."""
