"""The engine protocol over CUDA and TensorRT.

All but ``finding`` is imported only after the probe has found both usable.

Checked against the interfaces of TensorRT 10.15, 11.x and TensorRT for RTX by mypy; docs/gpu.md lists what of it has
never been executed.
"""
