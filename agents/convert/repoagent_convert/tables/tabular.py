"""What the converters of tables' models share: their options, the names of tensors, and how answers are compared."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import ConverterOption
from repoagent.converters.option_values import choice
from repoagent_convert.model_file import FileConverter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

ROWS: Final = 256
"""How many rows a conversion is compared on."""
_LARGEST: Final = 1e30
_TOLERANCE: Final = 1e-4
_HALF_TOLERANCE: Final = 1e-2
_MASK: Final = 1e8
"""Numbers from here on may stand for infinity, and do not show how large the others are."""
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "repoagent": {name: name for name in ("input", "prediction", "label", "probabilities", "scores")},
    "triton-fil": {"input": "input__0", "prediction": "output__0", "probabilities": "output__0"},
    "mlserver": {"input": "input", "prediction": "predict", "label": "predict", "probabilities": "predict_proba"},
}
"""Whose clients find the tensors that they know -> the names of these; one without a name is left out."""


class TabularConverter(FileConverter):
    """A converter of a model of rows, each with the same columns."""

    options: Mapping[str, ConverterOption] = {
        "names": ConverterOption("repoagent", f"what the tensors are called: those of {', '.join(NAMES)}"),
        "input_type": ConverterOption("fp32", "fp64: the input takes doubles, as NumPy and pandas have them"),
        **FileConverter.options,
    }

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """See :class:`FileConverter`."""
        return {
            "names": choice(options, "names", NAMES),
            "double": choice(options, "input_type", ("fp32", "fp64")) == "fp64",
        }


def rows_about(
    features: "npt.NDArray[Any]", thresholds: "npt.NDArray[Any]", rows: "Floats", random: Any, missing: bool = True
) -> "Floats":
    """Rows that a comparison is made on: half of the numbers are thresholds, or next to one.

    There a wrong rounding shows. The others lie around them, are 0, or missing.

    Args:
        features: The feature of each split.
        thresholds: The number that it is compared with.
        rows: Random numbers, for features without a split; it is changed.
        random: NumPy's generator; one of the same seed makes the same rows.
        missing: Whether some numbers are missing.
    """
    import numpy as np

    usual = np.flatnonzero(np.abs(thresholds) < _LARGEST)
    usual = usual[np.argsort(features[usual], kind="stable")]
    features, values = features[usual].astype(np.int64), thresholds[usual].astype(np.float32)
    count = len(rows)
    for feature in np.unique(features[features < rows.shape[1]]).tolist():
        start, end = np.searchsorted(features, [feature, feature + 1])
        drawn = random.choice(values[start:end], count)
        noise = drawn + random.normal(size=count).astype(np.float32) * np.float32(values[start:end].std() or 1)
        beside = np.nextafter(drawn, random.choice(np.array([-np.inf, np.inf], np.float32), count))
        rows[:, feature] = np.choose(random.choice(4, count, p=[0.45, 0.3, 0.2, 0.05]), [noise, drawn, beside, 0])
    if missing:
        rows[random.random(rows.shape) < 0.05] = np.nan
    return np.clip(rows, -_LARGEST, _LARGEST)


def closeness(found: "npt.NDArray[Any]", wanted: "npt.NDArray[Any]") -> "tuple[float, npt.NDArray[np.bool_]]":
    """The largest difference between numbers, and which of them are small beside their numbers."""
    import numpy as np

    tolerance = _HALF_TOLERANCE if np.asarray(found).dtype == np.float16 else _TOLERANCE
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    size = np.abs(wanted)
    usual = size[size < _MASK]
    with np.errstate(invalid="ignore"):
        differences = np.where(found == wanted, 0, np.abs(found - wanted))
        allowed = tolerance * (np.maximum(size, np.median(usual) if usual.size else 0) + usual.max(initial=0) / 100)
        is_close = (found == wanted) | (np.isfinite(wanted) & (differences <= allowed))
    return float(np.nan_to_num(differences, nan=0.0 if is_close.all() else np.inf).max()), is_close
