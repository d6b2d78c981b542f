"""The ONNX Runtime backend: ONNX and ORT-format models on the CPU."""
