"""The lower layer: Triton's C interface as Python classes, under the names of ``tritonserver._c``.

Programs should use :mod:`repoagent.server`. This is for those that were written against the binding module, whose
names are here as well as in :mod:`repoagent.server._c.triton_bindings`.
"""

from repoagent.server._c.triton_bindings import *  # noqa: F403
