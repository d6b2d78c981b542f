"""Models written in Python, as for Triton's Python backend."""
