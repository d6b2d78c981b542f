"""The lower layer: Triton's C interface as Python classes, under the names of ``tritonserver._c``.

Programs should use :mod:`repoagent.server`. This is for those that were written against the binding module.
"""
