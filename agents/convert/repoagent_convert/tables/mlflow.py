"""A folder of MLflow: its file MLmodel states which model file it has, of which library, with which columns."""

import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from repoagent.api import (
    ConversionSource,
    ConverterOption,
    InvalidArgumentError,
    UnsupportedError,
    read_beneath,
    read_json,
    status_beneath,
)
from repoagent_convert.frameworks import BuildsNothing

_LARGEST: Final = 1 << 20
_MOST_LINES: Final = 20_000
_DEEPEST: Final = 20
_LINE: Final = re.compile(r"( *)([A-Za-z0-9_./-]+):(?: (.*))?")
_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("onnx", "xgboost", "lightgbm", "catboost"), ("data",)),
    "sklearn": ("pickled_model",),
    "pytorch": ("model_data",),
    "keras": ("data",),
    "tensorflow": ("saved_model_dir", "data"),
}
"""Flavour -> the keys of its file or folder, the first that is there; the first flavour that a folder has is taken."""
_IN_FOLDERS: Final = {
    "model.pt2": "pt2", "model.keras": "keras", "model.h5": "keras", "saved_model.pb": "savedmodel",
    "model/saved_model.pb": "savedmodel",
}  # fmt: skip
"""The files of networks in their folder, and their formats."""
_INSTEAD: Final = {
    "pytorch": "mlflow.pytorch.save_model(model, path, input_example=rows, serialization_format='pt2')",
    "keras": "mlflow.keras.save_model(model, path)",
    "tensorflow": "mlflow.tensorflow.save_model(model, path)",
}
"""What writes a folder that is converted."""
_TYPES: Final = {"string": "string", "double": "fp32", "float": "fp32", "integer": "fp32", "long": "fp32"}


def recognizes_mlmodel(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is an MLmodel."""
    return re.search(rb"^flavors: *\r?$", head, re.MULTILINE) is not None


def mlmodel_text(source: ConversionSource) -> str:
    """The content of an MLmodel. Raises as :func:`repoagent.api.read_beneath`."""
    return read_beneath(source.directory, source.name, limit=_LARGEST, follow=False).decode("utf-8", "replace")


class MlflowConverter(BuildsNothing):
    """Names the converter of the file that a folder has; it converts nothing itself."""

    options = {
        name: ConverterOption(None, f"as for the library of the model: {name}")
        for name in (
            *("names", "input_type", "columns", "output", "trees"),
            *("missing", "any_version", "signature", "level"),
        )
    }
    describes_others = True
    """The other files of the directory are what this one describes."""

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is an MLmodel."""
        return recognizes_mlmodel(head)

    def redirect(
        self, source: ConversionSource, options: Mapping[str, str]
    ) -> tuple[tuple[str, str], ConversionSource, dict[str, str]]:
        """The conversion of the file that the folder has, that file, and the options of its converter.

        Raises:
            InvalidArgumentError: the MLmodel cannot be read.
            UnsupportedError: it has no model that is converted.
        """
        text = mlmodel_text(source)
        try:
            described = read_mlmodel(text)
            flavors = described["flavors"]
            if not (known := [name for name in _FILES if name in flavors]):
                found = ", ".join(flavors)[:200]
                raise UnsupportedError(
                    f"{source.label}: has the flavors {found}; converted are {', '.join(_FILES)}; with the parameter "
                    "to = python, MLflow runs others in an environment of the operator's"
                )
            flavor = flavors[known[0]]
            if flavor.get("code") not in (None, "", "null"):
                raise UnsupportedError(
                    f"{source.label}: has code of its own, which is not run; with the parameter to = python, MLflow "
                    "runs it in an environment of the operator's"
                )
            keys = _FILES[known[0]]
            name = flavor[next((key for key in keys if key in flavor), keys[0])]
            if not isinstance(name, str):
                raise ValueError("its model file has no name")
            columns = _columns(described.get("signature"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{source.label}: is not an MLmodel: {error!r}") from None
        name, kind = _file(source, known[0], name, flavor.get("serialization_format") == "skops")
        if kind in ("sklearn", "skops"):
            options = {"columns": columns, **options} if columns else options
        label = f"{source.label.rpartition('/')[0]}/{name}".lstrip("/")
        pair = (kind, "optimized" if kind == "onnx" else "onnx")
        return pair, replace(source, name=name, label=label), dict(options)


def _file(source: ConversionSource, flavor: str, name: str, is_skops: bool) -> tuple[str, str]:
    """The file of a flavour, and its format.

    Raises:
        UnsafePathError: the folder that it names is outside of this one, or a link.
        UnsupportedError: that folder has no file that is converted.
    """
    if flavor not in _INSTEAD:
        if flavor == "lightgbm" and name.endswith((".skops", ".pkl")):  # a booster stays text, whatever is stated
            return name, "lightgbm-skops" if name.endswith(".skops") else "sklearn"
        return name, "skops" if flavor == "sklearn" and is_skops else flavor
    for file, kind in _IN_FOLDERS.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISREG(status_beneath(source.directory, f"{name}/{file}", follow=False).st_mode):
                return f"{name}/{file}", kind
    raise UnsupportedError(
        f"{source.label}: its {flavor} model has none of {', '.join(_IN_FOLDERS)}; write it again, where it is "
        f"trained: {_INSTEAD[flavor]}"
    )


def _columns(signature: Any) -> str:
    """The columns of a signature, for the option ``columns``; empty where there is a matrix, or none is named.

    Raises:
        UnsupportedError: a column is of a type that no request has.
    """
    inputs = signature.get("inputs") if isinstance(signature, dict) else None
    if not inputs or inputs == "null":
        return ""
    found = []
    for one in read_json(inputs):
        if one["type"] == "tensor" or "name" not in one:
            return ""
        if one["type"] not in _TYPES:
            raise UnsupportedError(f"the column '{one['name']}' is of the type {one['type']}")
        found.append(f"{one['name']}:{_TYPES[one['type']]}")
    # A model of numbers alone takes a matrix; columns of texts have inputs of their own.
    return ",".join(found) if any(one.endswith(":string") for one in found) else ""


def read_mlmodel(text: str) -> dict[str, Any]:
    """What MLflow writes of YAML: mappings by indentation, plain and quoted texts; lists are left out.

    Raises:
        ValueError: it is something else.
    """
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        raise ValueError(f"more than {_MOST_LINES} lines")
    root: dict[str, Any] = {}
    places: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            if line.strip() and line.lstrip()[0] not in "#-":
                raise ValueError(f"line {position} is not 'name: value'")
            continue
        indent, name, value = len(match[1]), match[2], match[3] or ""
        if value[:1] in ("'", '"'):
            pieces, is_open = [value], not _ends(value[1:], value[0])
            while is_open and position < len(lines):
                pieces.append(lines[position].strip())
                position += 1
                is_open = not _ends(pieces[-1], value[0])
            value = " ".join(pieces)
        while indent <= places[-1][0]:
            places.pop()
        if len(places) > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} levels")
        if value:
            places[-1][1][name] = _scalar(value)
        else:
            inner: dict[str, Any] = {}
            places[-1][1][name] = inner
            places.append((indent, inner))
    return root


def _ends(piece: str, quote: str) -> bool:
    """Whether a line ends the text that ``quote`` has begun."""
    if quote == "'":
        return (len(piece) - len(piece.rstrip("'"))) % 2 == 1
    return piece.endswith('"') and not piece.endswith('\\"')


def _scalar(value: str) -> str:
    if value[0] == "'":
        return value[1:-1].replace("''", "'")
    if value[0] == '"':
        return str(read_json(value.replace("\\ ", "")))
    if value[0] in "&*!|>{[":
        raise ValueError(f"'{value[:20]}' is not read")
    return value
