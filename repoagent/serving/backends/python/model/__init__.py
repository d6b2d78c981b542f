"""What a model's own code sees and uses (`triton_python_backend_utils`), and how that code is run.

The same in the server and in a process of its own; nothing here knows in which of them it is.
"""
