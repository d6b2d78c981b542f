"""The formats that the agent knows, and which of them it accepts unless told otherwise."""

from enum import StrEnum
from typing import Final


class MalformedError(ValueError):
    """The file is damaged, or made to mislead. The text states where."""


class Format(StrEnum):
    """A format of files. The value is its name in the parameter ``allow`` and in reports."""

    ONNX = "onnx"
    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    PLAN = "tensorrt-plan"
    NUMPY = "numpy"
    SENTENCEPIECE = "sentencepiece"
    XGBOOST = "xgboost"
    TEXT = "text"
    EXTERNAL_DATA = "onnx-external-data"
    PICKLE = "pickle"
    PYTHON = "python"
    NATIVE = "native-code"
    ORT = "ort"
    HDF5 = "hdf5"
    ARCHIVE = "archive"
    SKOPS = "skops"
    KERAS = "keras"
    CATBOOST = "catboost"
    UNKNOWN = "unknown"


ACCEPTED: Final = frozenset(
    {
        Format.ONNX,
        Format.SAFETENSORS,
        Format.GGUF,
        Format.PLAN,
        Format.NUMPY,
        Format.SENTENCEPIECE,
        Format.XGBOOST,
        Format.TEXT,
        Format.EXTERNAL_DATA,
    }
)

RISKS: Final = {
    Format.PICKLE: "loading a pickle runs the code in it; convert the weights to safetensors or ONNX",
    Format.PYTHON: "it is Python code",
    Format.NATIVE: "it is a program, or code for one",
    Format.ORT: "its operators cannot be listed; ship the ONNX model",
    Format.HDF5: "a Keras model in it may hold Python code; convert it to ONNX",
    Format.ARCHIVE: "what is in an archive is not looked at; ship the files",
    Format.SKOPS: "opening it makes types by name; convert it to ONNX",
    Format.KERAS: "a Keras model may hold Python code; convert it to ONNX",
    Format.CATBOOST: "its reader is native code; convert it to ONNX",
    Format.UNKNOWN: "its format is unknown",
}
"""Why each format that is not accepted is refused."""
