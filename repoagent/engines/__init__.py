"""TensorRT behind one door: which flavour is here, whether it is usable, plans and engines.

Nothing of TensorRT or CUDA is imported by importing this package.
"""
