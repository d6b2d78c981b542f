"""Whether TensorRT is usable here; found out in a child process, because the library may end the process."""

from repoagent.engines.probing.findings import Findings, Gpu
from repoagent.engines.probing.parent import probe

__all__ = ["Findings", "Gpu", "probe"]
