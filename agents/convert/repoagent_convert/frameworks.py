"""Models of frameworks that write ONNX themselves: each is recognised by content, and refused with what to run."""

from typing import Any, ClassVar, Final

from repoagent.api import ConversionJob, ConversionPlan, ConversionSource, InternalError, Product, UnsupportedError

_ZIP: Final = b"PK\x03\x04"
_FIRST_NAMES: Final = 300
"""The bytes from the start of an archive that have the name of its first member."""


def is_pt2(head: bytes, tail: bytes) -> bool:
    """Whether an archive states that it is one of ``torch.export.save``."""
    names = head[:_FIRST_NAMES] + tail
    return head[:4] == _ZIP and (b"archive_format" in names or b"serialized_exported_program" in names)


class BuildsNothing:
    """What a converter has that is never asked to build, as its plan refuses, or names another converter."""

    version = "1"
    in_child = True

    def plan(self, source: ConversionSource, options: Any) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        raise InternalError(f"{source.label}: the model that it names is converted")

    def build(self, job: ConversionJob) -> Product:
        """Never asked."""
        raise InternalError("there is no plan to build")

    def configure(self, config: Any, plan: ConversionPlan, product: Product) -> None:
        """Never asked."""


class Framework(BuildsNothing):
    """A format that is known, and not converted here: opening it runs code, in an environment of gigabytes."""

    options: ClassVar[dict[str, Any]] = {}
    yields = True
    """Beside a model that is converted, such a file is not the model."""
    title: ClassVar[str]
    way: ClassVar[str]

    def plan(self, source: ConversionSource, options: Any) -> ConversionPlan:
        """Refuse the source.

        Raises:
            UnsupportedError: always.
        """
        # The command has no name of the model's: one may be chosen so that a shell runs part of it.
        raise UnsupportedError(f"{source.label}: is {self.title}, which is not converted here; {self.way}")


class TorchScript(Framework):
    """A file of ``torch.jit.save``."""

    title = "TorchScript"
    way = (
        "it lacks the example inputs that the conversion needs. Where the model is written, run: "
        "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True, external_data=False)"
    )

    def recognizes_ends(self, head: bytes, tail: bytes) -> bool:
        """Whether an archive has code."""
        return head[:4] == _ZIP and b"constants.pkl" in tail and not is_pt2(head, tail)


class StateDict(Framework):
    """A file of ``torch.save``, today's archive or yesterday's pickle."""

    title = "a file of torch.save"
    way = (
        "it has weights and no graph. Where the model is written, load them, and run: "
        "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True, external_data=False)"
    )

    def recognizes(self, head: bytes) -> bool:
        """Whether a file has the number that pickles of torch begin with."""
        return head.startswith(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")

    def recognizes_ends(self, head: bytes, tail: bytes) -> bool:
        """Whether an archive has a pickle, and no code."""
        others = is_pt2(head, tail) or TorchScript().recognizes_ends(head, tail)
        return head[:4] == _ZIP and b"/data.pkl" in head[:_FIRST_NAMES] + tail and not others
