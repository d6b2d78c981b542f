"""What the custom C++ backends of Triton's examples and tests do, under their names.

They compute next to nothing, on purpose: models that name them show how clients, schedulers and streams behave. Each
is one module, imported when a model names it; their texts for configurations that they do not take are Triton's.
"""
