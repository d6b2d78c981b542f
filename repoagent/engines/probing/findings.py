"""What the probe found."""

import json
from dataclasses import asdict, dataclass

from repoagent.nested_text import read_json


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as CUDA lists it."""

    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The answer of the probe: the flavour that can be used, or why none can."""

    flavour: str = ""
    """``tensorrt`` or ``tensorrt_rtx``: the flavour that is installed; empty for none."""
    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """Why no plan can run here; empty if plans can run."""

    @property
    def usable(self) -> bool:
        """Whether plans can run here."""
        return not self.problem

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Findings":
        """The other way.

        Raises:
            ValueError: it is something else.
        """
        try:
            fields = read_json(text)
            gpus = tuple(
                Gpu(int(one["index"]), str(one["name"]), tuple(one["capability"]), int(one["memory_bytes"]))
                for one in fields["gpus"]
            )
            return cls(str(fields["flavour"]), str(fields["version"]), gpus, str(fields["problem"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a report of the probe: {error}") from error
