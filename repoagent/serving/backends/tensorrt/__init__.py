"""The TensorRT backend: plans on GPUs, through the engine protocol."""
