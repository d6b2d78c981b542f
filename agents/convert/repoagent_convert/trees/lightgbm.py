"""LightGBM to ONNX: models of ``save_model``, which are text, and what MLflow makes of its estimators."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import Archive, ConversionSource, InvalidArgumentError, UnsupportedError, read_json
from repoagent_convert.trees.converter import TreeConverter
from repoagent_convert.trees.ensemble import (
    MOST_CATEGORIES,
    MOST_NODES,
    NEARLY_ZERO,
    Ensemble,
    Link,
    Rounding,
    Tree,
    bounded,
    integers,
    reals,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_OBJECTIVES: Final[Mapping[str, Link]] = {
    "": Link.IDENTITY,
    "regression": Link.IDENTITY,
    "regression_l1": Link.IDENTITY,
    "huber": Link.IDENTITY,
    "fair": Link.IDENTITY,
    "quantile": Link.IDENTITY,
    "mape": Link.IDENTITY,
    "lambdarank": Link.IDENTITY,
    "rank_xendcg": Link.IDENTITY,
    "poisson": Link.EXP,
    "gamma": Link.EXP,
    "tweedie": Link.EXP,
    "cross_entropy": Link.SIGMOID,
    "cross_entropy_lambda": Link.SOFTPLUS,
    "binary": Link.BINARY,
    "multiclass": Link.SOFTMAX,
    "multiclassova": Link.ONE_OF,
}
"""Objective -> what the sums become; one of the user's own has no name in the file, and LightGBM answers the sums."""
_TEXT_BYTES: Final = 256 << 20
"""A text takes some times as much memory once its lines are apart."""
_IS_CATEGORY: Final = 1
_DEFAULT_LEFT: Final = 2
_ZERO, _NAN = 1, 2
"""What is missing: nothing (then NaN counts as 0), 0, or NaN."""
_FEW: Final = 8
_LEAST_STEPS: Final = 64
"""Of float32, between two thresholds in the median."""
_Thresholds = tuple["npt.NDArray[np.int64]", "npt.NDArray[np.float64]"]


class LightgbmConverter(TreeConverter):
    """Trees of LightGBM 2.3 and later become an ensemble of ONNX's own."""

    version = "2"
    title = "LightGBM"
    library = "lightgbm"

    def recognizes(self, head: bytes) -> bool:
        """See :class:`TreeConverter`."""
        lines = head.split(b"\n", 2)
        return lines[0].rstrip() == b"tree" and len(lines) > 1 and lines[1].startswith(b"version=")

    def read(self, data: bytes, settings: Mapping[str, Any]) -> tuple[Ensemble, Sequence[str]]:
        """See :class:`TreeConverter`. The file ends with the best iteration."""
        return read_lightgbm(data), ()

    def expected(self, data: bytes, rows: "npt.NDArray[np.float32]", ensemble: Ensemble) -> "npt.NDArray[Any]":
        """What LightGBM itself answers."""
        import lightgbm
        import numpy as np

        found = lightgbm.Booster(model_str=data.decode()).predict(rows.astype(np.float64))
        return np.asarray(found)


class LightgbmSkopsConverter(LightgbmConverter):
    """What MLflow writes of the classes in the manner of scikit-learn: skops around the text, which alone is read."""

    title = "LightGBM in skops"

    def recognizes(self, head: bytes) -> bool:
        """Never: as a file of skops it is one of scikit-learn, unless an MLmodel states more."""
        return False

    def accepts(self, source: ConversionSource) -> bool:
        """Whatever an MLmodel names; the build refuses the rest."""
        return True

    def unpacked(self, data: bytes) -> bytes:
        """See :class:`TreeConverter`."""
        return text_in_skops(data)


def text_in_skops(data: bytes) -> bytes:
    """The text of the trees in a file of skops, of which nothing is made. It ends with the best iteration.

    Raises:
        InvalidArgumentError: there is none.
        UnsupportedError: the archive is too large.
    """
    schema = Archive(io.BytesIO(data), _TEXT_BYTES).read("schema.json")
    try:
        document = read_json(schema)
        if document["__module__"] != "lightgbm.sklearn":
            raise InvalidArgumentError(f"it is {str(document['__module__'])[:80]}")
        booster = document["content"]["content"]["_Booster"]["content"]["content"]
        text = read_json((booster.get("_handle") or booster["handle"])["content"])
        return str(text).encode()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"no trees of LightGBM in a file of skops: {error!r}"[:300]) from None


def read_lightgbm(data: bytes) -> Ensemble:
    """The trees of a file.

    Raises:
        InvalidArgumentError: it is damaged.
        UnsupportedError: it has what ONNX cannot express.
    """
    if len(data) > _TEXT_BYTES:
        raise UnsupportedError(f"has more than {_TEXT_BYTES} bytes of text")
    blocks = _blocks(data)
    header = next(blocks)
    objective, *words = header.get("objective", "").split() or [""]
    if objective not in _OBJECTIVES:
        known = ", ".join(name for name in _OBJECTIVES if name)
        raise UnsupportedError(f"the objective '{objective[:40]}' is not known; known are: {known}")
    link = _OBJECTIVES[objective]
    if "sqrt" in words:
        link = Link.SQUARE
    targets = bounded("num_tree_per_iteration", header.get("num_tree_per_iteration"), 1, 1 << 20)
    ensemble = Ensemble(
        features=bounded("max_feature_idx", header.get("max_feature_idx"), 0, 1 << 31) + 1,
        targets=targets,
        link=link,
        base=[0.0] * min(targets, 1 << 20),
        equal_goes_yes=True,
        rounding=Rounding.TO_ZERO,
        objective=objective,
        feature_names=header.get("feature_names", "").split(),
    )
    trees = list(blocks)
    if len(header.get("tree_sizes", "").split()) != len(trees):
        raise InvalidArgumentError(f"has {len(trees)} trees, and other ones in 'tree_sizes'")
    scale = 1.0
    if link in (Link.BINARY, Link.ONE_OF):
        (scale,) = _reals({"sigmoid": _word(words, "sigmoid", "1")}, "sigmoid", 1)
    if "average_output" in header:
        scale /= max(1, len(trees) // targets)
    missing: dict[int, bool] = {}
    thresholds: list[_Thresholds] = []
    for number, tree in enumerate(trees):
        ensemble.add(_tree(tree, number % targets, scale, missing, thresholds))
    _refuse_finer_than_float32(thresholds)
    ensemble.zero_is_missing.update(feature for feature, is_zero in missing.items() if is_zero)
    return ensemble


def _word(words: Sequence[str], name: str, default: str) -> str:
    return next((word.partition(":")[2] for word in words if word.startswith(f"{name}:")), default)


def _blocks(data: bytes) -> Iterator[dict[str, str]]:
    """The header, then each tree: the names and values of their lines."""
    found: dict[str, str] = {}
    trees = 0
    for line in data.decode("utf-8", "replace").split("\n"):
        name, _, value = line.rstrip("\r").partition("=")
        if name == "Tree":
            yield found
            found = {}
            if value != str(trees):
                raise InvalidArgumentError(f"has the tree '{value[:20]}' where {trees} is expected")
            trees += 1
        elif name == "end of trees":
            yield found
            return
        elif name in found:
            raise InvalidArgumentError(f"has '{name[:40]}' twice")
        elif name:
            found[name] = value
    raise InvalidArgumentError("is cut off: it has no line 'end of trees'")


def _tree(
    block: Mapping[str, str],
    target: int,
    scale: float,
    missing: dict[int, bool],
    thresholds: "list[_Thresholds]",
) -> Tree:
    """Splits have the numbers from 0 on, the leaves those behind them.

    ``missing`` gets for each feature whether 0 is missing, and ``thresholds`` the features and thresholds of splits
    that are not by categories.
    """
    import numpy as np

    if block.get("is_linear", "0") != "0":
        raise UnsupportedError("linear trees (linear_tree = true)")
    leaves = bounded("num_leaves", block.get("num_leaves"), 1, 1 << 24)
    value = _reals(block, "leaf_value", leaves) * scale
    splits = leaves - 1
    feature, kinds, left, right = (
        _integers(block, name, splits) if splits else np.zeros(0, np.int64)
        for name in ("split_feature", "decision_type", "left_child", "right_child")
    )
    threshold = _reals(block, "threshold", splits) if splits else np.zeros(0)
    by_category, what = (kinds & _IS_CATEGORY) != 0, (kinds >> 2) & 3
    if (what > _NAN).any() or (kinds.size and not 0 <= kinds.min() <= kinds.max() < 16):
        raise InvalidArgumentError("'decision_type' has a number that is not known")
    _note_zeros(feature[~by_category], what[~by_category] == _ZERO, missing)
    thresholds.append((feature[~by_category], threshold[~by_category]))
    default_left = np.where(what == 0, threshold >= 0, (kinds & _DEFAULT_LEFT) != 0)
    return Tree(
        target=target,
        feature=_padded(feature, leaves, 0),
        threshold=_padded(_rounded_down(threshold), leaves, 0).astype(np.float32),
        yes=_padded(_children(left, splits), leaves, -1),
        no=_padded(_children(right, splits), leaves, -1),
        missing_yes=_padded(default_left & ~by_category, leaves, 0).astype(np.bool_),
        value=np.concatenate([np.zeros(splits), value]).astype(np.float32),
        categories=_categories(block, threshold, np.flatnonzero(by_category).tolist()),
    )


def _note_zeros(features: "npt.NDArray[np.int64]", zero: "npt.NDArray[np.bool_]", missing: dict[int, bool]) -> None:
    for feature, is_zero in {*zip(features.tolist(), zero.tolist(), strict=True)}:
        if missing.setdefault(feature, is_zero) != is_zero:
            raise UnsupportedError(f"the feature {feature} is missing where it is 0, but not in every split")


def _refuse_finer_than_float32(thresholds: "Sequence[_Thresholds]") -> None:
    """Refuse features such as seconds since 1970: float32 rounds numbers to the same that thresholds lie between.

    Raises:
        UnsupportedError: there is one.
    """
    import numpy as np

    features, values = (np.concatenate(column) for column in zip(*thresholds, strict=True))
    order = np.lexsort((values, features))
    features, values = features[order], values[order]
    for known in np.split(np.arange(len(features)), np.flatnonzero(np.diff(features)) + 1):
        found = np.unique(values[known])
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.spacing(np.abs(found[1:]).astype(np.float32))
            is_fine = len(found) > _FEW and np.median(np.diff(found) / steps) < _LEAST_STEPS
        if is_fine:
            raise UnsupportedError(
                f"the feature {features[known[0]]} has numbers about {found[-1]:.6g} that FP32 rounds to the same; "
                "train with its difference to one of them"
            )


def _integers(block: Mapping[str, str], name: str, size: int | None = None) -> "npt.NDArray[np.int64]":
    try:
        return integers(name, [int(one) for one in block.get(name, "").split()], size)
    except ValueError:
        raise InvalidArgumentError(f"'{name}' is not a list of whole numbers") from None


def _reals(block: Mapping[str, str], name: str, size: int) -> "npt.NDArray[np.float64]":
    try:
        return reals(name, [float(one) for one in block.get(name, "").split()], size)
    except ValueError:
        raise InvalidArgumentError(f"'{name}' is not a list of numbers") from None


def _padded(values: "npt.NDArray[Any]", leaves: int, value: int) -> "npt.NDArray[Any]":
    import numpy as np

    return np.concatenate([values, np.full(leaves, value)])


def _children(numbers: "npt.NDArray[np.int64]", splits: int) -> "npt.NDArray[np.int64]":
    """Leaves are counted -1, -2, ..."""
    import numpy as np

    if numbers.size and not -splits - 1 <= numbers.min() <= numbers.max() < splits:
        raise InvalidArgumentError("a split has a child that is not there")
    return np.where(numbers < 0, splits - 1 - numbers, numbers)


def _rounded_down(thresholds: "npt.NDArray[np.float64]") -> "npt.NDArray[np.float32]":
    """The largest float32 that is not above: the same ones of them are less than or equal to it.

    LightGBM takes what is nearly 0 for 0: no threshold may lie between such numbers.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
    near = np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
    zero = np.float32(NEARLY_ZERO)
    near = np.where((near >= -zero) & (near < 0), np.nextafter(-zero, np.float32(-np.inf)), near)
    return np.where((near >= 0) & (near < zero), zero, near)


def _categories(
    block: Mapping[str, str], threshold: "npt.NDArray[np.float64]", splits: Sequence[int]
) -> "dict[int, npt.NDArray[np.int64]]":
    """Their threshold is the number of a set of bits, 32 in a word."""
    import numpy as np

    if not splits:
        return {}
    ends, words = _integers(block, "cat_boundaries"), _integers(block, "cat_threshold")
    if words.size and not 0 <= words.min() <= words.max() < 1 << 32:
        raise InvalidArgumentError("'cat_threshold' has a number out of range")
    found, total = {}, 0
    for split in splits:
        number = threshold[split]
        if not (0 <= number < len(ends) - 1 and number == int(number)):
            raise InvalidArgumentError(f"the split {split} is by categories, and has none")
        start, end = ends[int(number) : int(number) + 2].tolist()
        if not 0 <= start <= end <= len(words):
            raise InvalidArgumentError("'cat_boundaries' has a place that 'cat_threshold' does not have")
        if (end - start) * 32 > MOST_CATEGORIES:
            raise InvalidArgumentError(f"a category is not a number from 0 to {MOST_CATEGORIES - 1}")
        bits = np.unpackbits(words[start:end].astype("<u4").view(np.uint8), bitorder="little")
        found[split] = np.flatnonzero(bits)
        total += len(found[split])
        if total > MOST_NODES:  # many splits of a small file may name the same set
            raise InvalidArgumentError(f"the trees have more than {MOST_NODES} nodes")
    return found
