"""Trees from a file of others, and the ONNX model that computes them.

Every count, index and number of a tree is checked before anything is made of it: ONNX Runtime takes a feature that no
row has, a number that is none, or a node with two parents, and answers wrongly or fails at each request.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]
    Booleans = npt.NDArray[np.bool_]
    Floats = npt.NDArray[np.float32]

_MOST_FEATURES: Final = 1 << 20
MOST_CATEGORIES: Final = 1 << 24
"""The numbers of categories are compared as float32, which has no odd numbers from here on."""
_MOST_TARGETS: Final = 1 << 14
MOST_NODES: Final = 1 << 24
_DEEPEST: Final = 2048
"""ONNX Runtime opens a tree by calling itself for each level: twice as many need 3 MiB of stack."""
NEARLY_ZERO: Final = 1e-35
"""For LightGBM, what is no further from 0 is 0."""
LEAF, COMPARED, MEMBER = 0, 1, 2
"""The kinds of nodes."""


class Link(StrEnum):
    """What is made of the sums of the leaves."""

    IDENTITY = "identity"
    EXP = "exp"
    SIGMOID = "sigmoid"
    SOFTPLUS = "softplus"
    SQUARE = "square"
    """The square, with the sign of the sum."""
    STEP = "step"
    """A class of two, without a probability."""
    BINARY = "binary"
    LABELS = "labels"
    """For each target, whether it applies."""
    SOFTMAX = "softmax"
    ONE_OF = "one-of"
    """One class of several, each with a probability of its own; they do not add up to 1."""


class Rounding(StrEnum):
    """How a library makes a category of a number that is not whole."""

    DOWN = "down"
    TO_ZERO = "to zero"


def bounded(name: str, value: Any, least: int, most: int) -> int:
    """The whole number ``value`` of a file, which may be a text.

    Raises:
        InvalidArgumentError: it is something else, or out of range.
    """
    text = value if isinstance(value, str) else repr(value)
    if not isinstance(value, int | str) or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgumentError(f"'{name}' is not a whole number: {text[:40]}")
    if not least <= int(text) <= most:
        raise InvalidArgumentError(f"'{name}' is {text}; expected {least} to {most}")
    return int(text)


def integers(name: str, values: Any, size: int | None = None) -> "Integers":
    """The list ``values`` of a file, of ``size`` whole numbers.

    Raises:
        InvalidArgumentError: it is something else.
    """
    found = _numbers(name, values, size)
    if found.dtype.kind == "f" and found.size:
        raise InvalidArgumentError(f"'{name}' has a number that is not whole")
    if found.dtype.kind == "u" and found.size and found.max() >= 1 << 63:
        raise InvalidArgumentError(f"'{name}' has a number out of range")
    return found.astype("int64")


def reals(
    name: str, values: Any, size: int | None = None, *, ignored: "Booleans | None" = None
) -> "npt.NDArray[np.float64]":
    """The list ``values`` of a file, of ``size`` finite numbers; what is in the places ``ignored`` becomes 0.

    Raises:
        InvalidArgumentError: it is something else.
    """
    import numpy as np

    with np.errstate(invalid="ignore"):
        found = _numbers(name, values, size).astype("float64")
    if ignored is not None:
        found[ignored] = 0
    if not np.isfinite(found).all():
        raise InvalidArgumentError(f"'{name}' has a number that is not finite")
    return found


def _numbers(name: str, values: Any, size: int | None) -> "npt.NDArray[Any]":
    import numpy as np

    found: npt.NDArray[Any]
    if isinstance(values, np.ndarray):
        found = values
    else:
        # Of texts, NumPy would make an array with places for the longest.
        if not isinstance(values, list) or not set(map(type, values)) <= {int, float, bool}:
            raise InvalidArgumentError(f"'{name}' is not a list of numbers")
        try:
            found = np.array(values)
        except OverflowError:
            raise InvalidArgumentError(f"'{name}' has a number out of range") from None
    if found.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"'{name}' has a number out of range")
    if size is not None and len(found) != size:
        raise InvalidArgumentError(f"'{name}' has {len(found)} values; expected {size}")
    return found


@dataclass(frozen=True, slots=True)
class Tree:
    """Arrays with a place for each node; node 0 is the root.

    A split goes to ``yes`` where the feature is below ``threshold`` (or equal, as the ensemble has it), or where it is
    one of ``categories``, and where it is missing and ``missing_yes``. ``yes`` of a leaf is -1, and ``value`` what it
    adds.
    """

    target: int
    feature: "Integers"
    threshold: "Floats"
    yes: "Integers"
    no: "Integers"
    missing_yes: "Booleans"
    value: "Floats"
    categories: Mapping[int, "Integers"] = field(default_factory=dict)

    def reachable(self) -> "Integers":
        """The nodes that a row may come to, the root first.

        Raises:
            InvalidArgumentError: a child is not there, or has two parents.
            UnsupportedError: it is too deep.
        """
        import numpy as np

        count = len(self.yes)
        seen = np.zeros(count, np.bool_)
        level = np.zeros(min(count, 1), np.int64)
        depth = np.zeros_like(level)
        levels: list[Integers] = []
        size = np.ones(count, np.int64)  # a split by categories becomes a chain of as many nodes
        size[list(self.categories)] = [len(members) for members in self.categories.values()]
        while level.size:
            if level.min() < 0 or level.max() >= count:
                raise InvalidArgumentError("a split has a child that is not there")
            if seen[level].any() or np.unique(level).size != level.size:
                raise InvalidArgumentError("a node is the child of two splits, or of itself")
            if depth.max() > _DEEPEST:
                raise UnsupportedError(f"a tree, with its categories, is deeper than {_DEEPEST} levels")
            seen[level] = True
            levels.append(level)
            is_split = self.yes[level] != -1
            splits, below = level[is_split], (depth + size[level])[is_split]
            level, depth = np.concatenate([self.yes[splits], self.no[splits]]), np.concatenate([below, below])
        return np.concatenate(levels) if levels else level


@dataclass(slots=True)
class Ensemble:
    """What a file describes: trees, and what becomes of their sums. ``base`` is added to the sum of each target."""

    features: int
    targets: int
    link: Link
    base: Sequence[float]
    equal_goes_yes: bool
    rounding: Rounding
    objective: str
    feature_names: Sequence[str] = ()
    zero_is_missing: set[int] = field(default_factory=set)
    missing: float = math.nan
    """The number that stands for a missing one, in every column, besides NaN."""
    iterations: int = 0
    """How many of the library's are taken; 0 takes all."""
    _rows: list[tuple["npt.NDArray[Any]", ...]] = field(default_factory=list)
    _count: int = 0
    _compared: set[int] = field(default_factory=set)
    categorical: set[int] = field(default_factory=set)
    """The features that splits ask for as categories."""

    def __post_init__(self) -> None:
        bounded("number of features", self.features, 1, _MOST_FEATURES)
        bounded("number of classes or targets", self.targets, 1, _MOST_TARGETS)
        if len(self.base) != self.targets or not all(abs(one) < 1e38 for one in self.base):
            raise InvalidArgumentError(f"the base score is not {self.targets} finite numbers")

    def add(self, tree: Tree) -> None:
        """Add a tree.

        Raises:
            InvalidArgumentError: it is damaged, or larger than is read.
        """
        import numpy as np

        if not 0 <= tree.target < self.targets:
            raise InvalidArgumentError(f"a tree is for the target {tree.target} of {self.targets}")
        nodes = tree.reachable()
        leaf = tree.yes[nodes] == -1
        category = ~leaf & np.isin(nodes, list(tree.categories))
        compared = ~leaf & ~category
        self._check(tree, nodes[leaf], nodes[~leaf])
        splits = nodes[category].tolist()
        # Before any is made: many splits of a small file may name the same categories.
        self._count += len(nodes) + sum(max(0, len(tree.categories[node]) - 1) for node in splits)
        if self._count > MOST_NODES:
            raise InvalidArgumentError(f"the trees have more than {MOST_NODES} nodes")
        self._compared.update(tree.feature[nodes[compared]].tolist())
        self.categorical.update(tree.feature[nodes[category]].tolist())
        plain = nodes[~category]
        mode = np.where(leaf, LEAF, COMPARED)[~category]
        value = np.where(tree.yes == -1, tree.value, tree.threshold)
        blocks: list[tuple[Any, ...]] = [
            (plain, mode, tree.feature[plain], value[plain], tree.yes[plain], tree.no[plain], tree.missing_yes[plain])
        ]
        unused = len(tree.yes)
        for node in splits:
            blocks.append(_chain(tree, node, unused))
            unused += len(blocks[-1][0]) - 1
        columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        root_first = np.argsort(columns[0])
        place = [np.full(len(root_first), number) for number in (len(self._rows), tree.target)]
        self._rows.append((*place, *(column[root_first] for column in columns)))

    def _check(self, tree: Tree, leaves: "Integers", splits: "Integers") -> None:
        import numpy as np

        used = tree.feature[splits]
        if used.size and not 0 <= used.min() <= used.max() < self.features:
            raise InvalidArgumentError(f"a split asks for a feature that is none of the {self.features}")
        if not leaves.size or not np.isfinite(tree.value[leaves]).all() or np.isnan(tree.threshold[splits]).any():
            raise InvalidArgumentError("a tree has no leaf, or a number that is not finite")

    def columns(self) -> "Columns":
        """All nodes of all trees.

        Raises:
            InvalidArgumentError: there is no tree.
            UnsupportedError: a feature is a category in one split and a number in another.
        """
        import numpy as np

        if not self._rows:
            raise InvalidArgumentError("there is no tree")
        if both := self._compared & self.categorical:
            raise UnsupportedError(f"the feature {min(both)} is a category in one split and a number in another")
        return Columns(*(np.concatenate(column) for column in zip(*self._rows, strict=True)))


def _chain(tree: Tree, node: int, unused: int) -> "tuple[npt.NDArray[Any], ...]":
    """The rows of a split by categories: a node for each; those behind the first get numbers from ``unused`` on."""
    import numpy as np

    members = tree.categories[node]
    count = len(members)
    if not count:
        raise UnsupportedError("a split by categories without one")
    if not 0 <= members.min() <= members.max() < MOST_CATEGORIES:
        raise InvalidArgumentError(f"a category is not a number from 0 to {MOST_CATEGORIES - 1}")
    ids = np.concatenate([[node], np.arange(unused, unused + count - 1)])
    missing = np.zeros(count, np.bool_)
    missing[0] = tree.missing_yes[node]  # the others are no more equal to it
    yes, feature = np.full(count, tree.yes[node]), np.full(count, tree.feature[node])
    no = np.append(ids[1:], tree.no[node])
    return ids, np.full(count, MEMBER), feature, members.astype(np.float32), yes, no, missing


@dataclass(frozen=True, slots=True)
class Columns:
    """The nodes of an ensemble, a place for each in every array. ``value`` of a leaf is what it adds."""

    tree: "Integers"
    target: "Integers"
    node: "Integers"
    mode: "Integers"
    feature: "Integers"
    value: "Floats"
    yes: "Integers"
    no: "Integers"
    missing_yes: "Booleans"

    def thresholds(self) -> "tuple[Integers, Floats]":
        """The feature and the threshold, or category, of every split."""
        splits = self.mode != LEAF
        return self.feature[splits], self.value[splits]
