"""TensorRT behind one door: which flavour is here, whether it is usable, plans, engines, and a stand-in for them.

Nothing of TensorRT or CUDA is imported by importing this package.
"""
