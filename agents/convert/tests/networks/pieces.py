"""Converters whose jail lacks one piece, and a text of Python that tries what each piece denies.

The process that builds imports this, in the environment of the framework: nothing here is heavy.
"""

import sys
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[2]))  # the agent's package, which no environment has

from repoagent_convert.networks.pt2 import Pt2Converter
from repoagent_convert.networks.tensorflow import KerasConverter, SavedModelConverter

from repoagent.beneath import jail

ATTACKS: Final = {
    "files": "open(outside + '/secret').close()",
    "sizes": "os.ftruncate(os.open('big', os.O_CREAT | os.O_RDWR), 3 << 30)",
    "capabilities": "os.setgroups([1])",
    "network": "__import__('socket').socket().close()",
    "programs": "os.fork() or os._exit(0)",
    "processes": "__import__('fcntl').fcntl(1, 8, os.getppid())",
    "attributes": "os.utime(outside + '/secret')",
    "machine": "ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(208)) >= 0 or os.stat('/nowhere')",
}
"""Piece of the jail -> what succeeds without it."""
PIECES: Final = {"files": "enter_files", "sizes": "enter_sizes", "capabilities": "_drop_capabilities"}
"""Pieces with a function of their own; the others are groups of :data:`repoagent.beneath.jail.CALLS`."""


def attack(outside: Path) -> str:
    """Python that tries all of them, and leaves a file ``outside / "done" / NAME`` for each that succeeds."""
    tries = [
        f"try:\n    {code}\n    open(outside + '/done/{name}', 'w').close()\nexcept OSError:\n    pass"
        for name, code in ATTACKS.items()
    ]
    return "\n".join([f"import ctypes, os\noutside = {str(outside)!r}", *tries])


class OpenKeras(KerasConverter):
    """Keras as if it had a fault: it runs the code of a ``Lambda``."""

    def prepare(self) -> None:
        """Before the jail."""
        super().prepare()
        import keras

        load = keras.saving.load_model
        keras.saving.load_model = lambda path, **more: load(path, **{**more, "safe_mode": False})


class OpenSavedModel(SavedModelConverter):
    """TensorFlow as if it had a fault: the functions of Python that a graph names execute their argument."""

    def prepare(self) -> None:
        """Before the jail."""
        super().prepare()
        from tensorflow.python.ops import script_ops

        for _ in range(100):
            script_ops._py_funcs.insert(execute)


def execute(text: bytes) -> Any:
    """Run ``text``."""
    import numpy as np

    exec(text.decode(), {})
    return np.int64(0)


_OPEN: Final[dict[str, Any]] = {"pt2": Pt2Converter, "keras": OpenKeras, "savedmodel": OpenSavedModel}


def __getattr__(name: str) -> Any:
    """``KIND_PIECE``: the converter of that kind, without that piece of its jail, and without that of files."""
    kind, _, piece = name.partition("_")
    if kind not in _OPEN:
        raise AttributeError(name)
    base = _OPEN[kind]

    def prepare(self: Any) -> None:
        base.prepare(self)
        calls = jail.enter_calls
        for one in {piece, "files"} & {*PIECES} if piece else ():
            setattr(jail, PIECES[one], lambda *_: None)
        jail.enter_calls = lambda groups=jail.CALLS: calls({*groups} - {piece})

    return type(name, (base,), {"prepare": prepare, "__module__": __name__})
