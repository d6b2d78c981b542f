"""Converters of language models: checkpoints to decoder folders, decoder folders to TensorRT plans."""
