"""The one module that imports TensorRT, whatever the flavour. Import it only where TensorRT is about to be used.

``trt`` is typed as TensorRT's own module; ``tests/engines/api`` checks everything that is written against it with
mypy for each supported version. Importing this module raises ``UnsupportedError`` where there is no TensorRT.
"""

from typing import TYPE_CHECKING, Final

from repoagent.engines.flavours import Flavour, import_tensorrt

if TYPE_CHECKING:
    import tensorrt as trt

    FLAVOUR: Final[Flavour] = Flavour.TENSORRT
else:
    FLAVOUR, trt = import_tensorrt()

__all__ = ["FLAVOUR", "trt"]
