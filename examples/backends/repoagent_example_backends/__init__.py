"""What the custom C++ backends of Triton's examples and tests do, under their names.

They compute next to nothing, on purpose: models that name them show how clients, schedulers and streams behave. Each
is one module, imported when a model names it; their texts for configurations that they do not take are Triton's.
"""

from collections.abc import Mapping

from repoagent.api.hooks import hookimpl

__all__ = ["register_backends"]


@hookimpl
def register_backends() -> Mapping[str, str]:
    """The five names of Triton's."""
    return {
        "dyna_sequence": f"{__name__}.sequences:DynaSequenceBackend",
        "identity": f"{__name__}.identity:IdentityBackend",
        "repeat": f"{__name__}.repeat:RepeatBackend",
        "sequence": f"{__name__}.sequences:SequenceBackend",
        "square": f"{__name__}.square:SquareBackend",
    }
