"""Converters of ONNX models, which may have their weights in files beside them."""
