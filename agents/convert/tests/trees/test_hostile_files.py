"""Damaged and hostile files: an error, or a model that ONNX Runtime opens and runs, in little memory."""

import json
import random
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from repoagent_convert.trees import lightgbm
from repoagent_convert.trees.ensemble import Ensemble, Link, Rounding, Tree
from repoagent_convert.trees.graph import to_onnx

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from tests.extent import in_full

from .conftest import Recorded

MUTATIONS = in_full(10_000, otherwise=100)
MOST_KIB = 400_000
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"255",
    b"65536",
    b"2147483647",
    b"-9223372036854775808",
    b"1e400",
    b"NaN",
    b"null",
    b"{}",
)
"""What takes the place of a number in a text."""


def read(model: Recorded, content: bytes) -> Any:
    ensemble, _ = model.converter.read(content, {})
    return to_onnx(ensemble, "repoagent", double=False)


def mutated(content: bytes, source: random.Random, is_text: bool) -> bytes:
    """``content`` with one to four changes."""
    data = bytearray(content)
    for _ in range(source.randint(1, 4)):
        data = data or bytearray(b"{")
        place = source.randrange(len(data))
        match source.randrange(6):
            case 0:
                data[place] ^= 1 << source.randrange(8)
            case 1:
                del data[place:]
                data += b"\n"
            case 2:
                del data[place : place + source.randint(1, 200)]
            case 3:
                data[place:place] = data[source.randrange(len(data)) :][: source.randint(1, 200)]
            case 4 if is_text:
                end = place
                while end < len(data) and data[end : end + 1] in b"0123456789.-eE":
                    end += 1
                data[place:end] = source.choice(NUMBERS)
            case _:
                data[place : place + 4] = source.randbytes(4) if not is_text else b"%d" % source.randrange(10**4)
    return bytes(data)


def test_a_long_text_is_refused_before_it_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightgbm, "_TEXT_BYTES", 1000)
    with pytest.raises(UnsupportedError, match="has more than 1000 bytes of text"):
        read(Recorded("lgb-multiclass.txt"), b"tree\nversion=v4\n" + b"x" * 1000)


@pytest.mark.slow
@pytest.mark.timeout(in_full(3600, otherwise=300))
@pytest.mark.parametrize(
    "name", ["xgb-categories-100.ubj", "xgb-multi-softprob.json", "lgb-categories.txt", "lgb-zero-as-missing.txt"]
)
def test_a_damaged_file_is_refused_or_makes_a_model_that_runs(name: str) -> None:
    model, source = Recorded(name), random.Random(28)
    content = model.content
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for _ in range(MUTATIONS):
        damaged = mutated(content, source, is_text=not name.endswith(".ubj"))
        try:
            made = read(model, damaged)
        except RepoAgentError:
            refused += 1
            continue
        session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        width = session.get_inputs()[0].shape[1]
        answers = session.run(None, {"input": np.resize(model.rows, (3, width)).astype(np.float32)})
        assert all(len(one) == 3 for one in answers)
    assert refused > MUTATIONS / 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB


XGB = Recorded("xgb-binary-logistic.json")
Change = Callable[[Any], None]


def tree_of(document: Any, number: int = 0) -> Any:
    return document["learner"]["gradient_booster"]["model"]["trees"][number]


def put(*path: Any, value: Any) -> Change:
    """A change of the first tree."""

    def change(document: Any) -> None:
        place = tree_of(document)
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def put_parameter(name: str, value: Any) -> Change:
    return lambda document: document["learner"]["learner_model_param"].update({name: value})


def chain(document: Any) -> None:
    """A tree of 2100 levels."""
    count = 2100
    leaves = [*range(count + 1, 2 * count + 1)]
    tree_of(document).update(
        left_children=[*range(1, count + 1), *[-1] * (count + 1)],
        right_children=[*leaves, *[-1] * (count + 1)],
        split_indices=[0] * (2 * count + 1),
        split_type=[0] * (2 * count + 1),
        default_left=[0] * (2 * count + 1),
        split_conditions=[0.5] * (2 * count + 1),
    )


def categories_of(*nodes: int) -> Change:
    """Categories for ``nodes``, of which 0 is a split by them."""

    def change(document: Any) -> None:
        tree, count = tree_of(document), len(nodes)
        tree["split_type"][0] = 1
        tree.update(
            categories=[1], categories_nodes=[*nodes], categories_segments=[0] * count, categories_sizes=[1] * count
        )
        tree["split_indices"] = [place % 2 for place in range(len(tree["split_indices"]))]
        tree["split_indices"][0] = 5

    return change


def half_a_split(document: Any) -> None:
    categories_of(0)(document)
    tree_of(document)["right_children"][0] = -1


def all_categories(members: list[int], size: int) -> Change:
    def change(document: Any) -> None:
        tree = tree_of(document)
        tree["split_type"][0] = 1
        tree.update(categories=members, categories_nodes=[0], categories_segments=[0], categories_sizes=[size])

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (put("left_children", 1, value=0), "the child of two splits, or of itself"),
        (put("left_children", 0, value=2), "the child of two splits, or of itself"),
        (put("left_children", 0, value=10**6), "a child that is not there"),
        (put("left_children", 0, value=-7), "a child that is not there"),
        (put("right_children", 0, value=-1), "a child that is not there"),
        (put("left_children", value=[]), "'right_children' has .* values; expected 0"),
        (put("right_children", value=[1, 2]), "'right_children' has 2 values"),
        (put("split_indices", 0, value=6), "a feature that is none of the 6"),
        (put("split_indices", 0, value=-1), "a feature that is none of the 6"),
        (put("split_indices", 0, value=0.5), "'split_indices' has a number that is not whole"),
        (put("split_indices", 0, value=2**70), "'split_indices' has a number out of range"),
        (put("left_children", value=[2**64 - 1] * 15), "'left_children' has a number out of range"),
        (half_a_split, "a split has a child that is not there"),
        (put("split_indices", 0, value="0"), "'split_indices' is not a list of numbers"),
        (put("split_conditions", 0, value=float("nan")), "'split_conditions' has a number that is not finite"),
        (put("split_conditions", -1, value=float("inf")), "'split_conditions' has a number that is not finite"),
        (put("split_conditions", -1, value=1e300), "a number that is not finite"),
        (put("split_conditions", value={"a": 1}), "'split_conditions' is not a list of numbers"),
        (put("split_type", 0, value=1), "the split 0 is by categories, and has none"),
        (all_categories([], 0), "a split by categories without one"),
        (all_categories([-1], 1), "a category is not a number from 0 to 16777215"),
        (all_categories([1 << 24], 1), "a category is not a number from 0 to 16777215"),
        (all_categories([1, 2], 3), "a place that 'categories' does not have"),
        (all_categories([1], 1), "is a category in one split and a number in another"),
        (all_categories([*range(2100)], 2100), "a tree, with its categories, is deeper than 2048 levels"),
        (chain, "a tree, with its categories, is deeper than 2048 levels"),
        (put("tree_param", value=[]), "no 'tree_param', or of another kind than dict"),
        (put_parameter("num_feature", "0"), "'number of features' is 0; expected 1 to 1048576"),
        (put_parameter("num_feature", "2000000000"), "'number of features' is 2000000000"),
        (put_parameter("num_class", "1000000"), "'number of classes or targets' is 1000000"),
        (put_parameter("num_class", "-3"), "'num_class' is not a whole number: -3"),
        (put_parameter("base_score", "2"), "'base_score' is not a number that its objective can have"),
        (put_parameter("base_score", "[0.5, 0.5, 0.5]"), "the base score is not 1 finite numbers"),
        (lambda one: one["learner"]["objective"].update(name="reg:mine"), "the objective 'reg:mine' is not known"),
        (lambda one: one["learner"]["gradient_booster"]["model"]["tree_info"].pop(), "'tree_info' has 7 values"),
        (lambda one: one["learner"]["gradient_booster"]["model"].update(tree_info=[1] * 8), "for the target 1 of 1"),
        (lambda one: one["learner"]["gradient_booster"]["model"].update(trees=[], tree_info=[]), "there is no tree"),
        (lambda one: one.update(learner=3), "no 'learner', or of another kind than dict"),
    ],
)
def test_what_a_tree_may_not_have_is_refused_by_name(change: Change, text: str) -> None:
    document = json.loads(XGB.content)
    change(document)
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=text):
        read(XGB, json.dumps(document).encode())


@pytest.mark.parametrize("other", [10**9, -1, 1, 14])
def test_only_a_split_by_categories_has_categories(other: int) -> None:
    """The file may have them for another node: that one stays what it is."""
    made = []
    for nodes in ((0,), (0, other)):
        document = json.loads(XGB.content)
        categories_of(*nodes)(document)
        made.append(read(XGB, json.dumps(document).encode()))
    assert made[0] == made[1]


LGB = Recorded("lgb-categories.txt")


def sets_of_categories(splits: int, words: int) -> bytes:
    """A chain of ``splits``, all by one set of 32 categories for each of ``words``."""
    lines = {
        "num_leaves": [splits + 1],
        "split_feature": [0] * splits,
        "threshold": [0] * splits,
        "decision_type": [1] * splits,
        "left_child": [*range(1, splits), -1],
        "right_child": [-2 - place for place in range(splits)],
        "leaf_value": [1] * (splits + 1),
        "cat_boundaries": [0, words],
        "cat_threshold": [2**32 - 1] * words,
    }
    tree = "\n".join(f"{name}={' '.join(map(str, values))}" for name, values in lines.items())
    header = "tree\nversion=v4\nnum_tree_per_iteration=1\nmax_feature_idx=0\nobjective=regression\ntree_sizes=1"
    return f"{header}\n\nTree=0\n{tree}\n\nend of trees\n".encode()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_KIB << 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("splits", "words", "text"),
    [
        (1, 600_000, "a category is not a number from 0 to 16777215"),
        (1000, 20_000, "the trees have more than 16777216 nodes"),
    ],
)
def test_sets_of_categories_take_little_memory(splits: int, words: int, text: str) -> None:
    with little_memory(), pytest.raises(InvalidArgumentError, match=text):
        read(LGB, sets_of_categories(splits, words))


def test_splits_that_share_their_categories_take_little_memory() -> None:
    splits = 200_000
    nodes = np.arange(2 * splits + 1)
    nothing, is_split = np.zeros_like(nodes), nodes < splits
    yes, no = np.where(is_split, 2 * nodes + 1, -1), np.where(is_split, 2 * nodes + 2, -1)
    categories = dict.fromkeys(range(splits), np.arange(100))
    numbers = nothing.astype(np.float32)
    tree = Tree(0, nothing, numbers, yes, no, nothing.astype(np.bool_), numbers, categories)
    ensemble = Ensemble(1, 1, Link.IDENTITY, [0.0], False, Rounding.DOWN, "")
    with little_memory(), pytest.raises(InvalidArgumentError, match="the trees have more than 16777216 nodes"):
        ensemble.add(tree)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("end of trees", "", "is cut off: it has no line 'end of trees'"),
        ("Tree=1", "Tree=7", "the tree '7' where 1 is expected"),
        ("num_leaves=8", "num_leaves=9", "'leaf_value' has 8 values; expected 9"),
        ("num_leaves=8", "num_leaves=16777217", "'num_leaves' is 16777217; expected 1 to 16777216"),
        ("num_leaves=8", "num_leaves=8\nnum_leaves=8", "has 'num_leaves' twice"),
        ("left_child=", "left_child=99 ", "'left_child' has 8 values; expected 7"),
        ("split_feature=", "split_feature=x ", "'split_feature' is not a list of whole numbers"),
        ("threshold=", "threshold=x ", "'threshold' is not a list of numbers"),
        ("decision_type=", "decision_type=99 ", "'decision_type' has 8 values"),
        ("cat_threshold=", "cat_threshold=-1 ", "'cat_threshold' has a number out of range"),
        ("cat_boundaries=0 ", "cat_boundaries=0 9999 ", "a place that 'cat_threshold' does not have"),
        ("max_feature_idx=5", "max_feature_idx=0", "a feature that is none of the 1"),
        ("max_feature_idx=5", "max_feature_idx=99999999", "'number of features' is 100000000"),
        ("num_tree_per_iteration=1", "num_tree_per_iteration=99999", "'number of classes or targets' is 99999"),
        ("objective=binary", "objective=own", "the objective 'own' is not known"),
        ("sigmoid:1", "sigmoid:nan", "'sigmoid' has a number that is not finite"),
        ("tree_sizes=", "tree_sizes=1 ", "has 8 trees, and other ones in 'tree_sizes'"),
        ("is_linear=0", "is_linear=1", "linear trees"),
    ],
)
def test_what_a_text_may_not_have_is_refused_by_name(old: str, new: str, text: str) -> None:
    content = LGB.content.decode()
    assert old in content
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=text):
        read(LGB, content.replace(old, new, 1).encode())


@pytest.mark.parametrize("first", [0, 1_700_000_000])
def test_seconds_since_1970_are_refused_as_float32_has_two_minutes_between_them(first: int) -> None:
    """LightGBM itself compares doubles."""
    counted = count(first, 340)

    def replaced(line: str) -> str:
        name, _, values = line.partition("=")
        if name == "threshold":
            return f"threshold={' '.join(str(next(counted)) for _ in values.split())}"
        return f"split_feature={' '.join('0' for _ in values.split())}" if name == "split_feature" else line

    lines = Recorded("lgb-regression.txt").content.decode().split("\n")
    content = "\n".join(map(replaced, lines)).encode()
    if not first:
        read(LGB, content)
        return
    with pytest.raises(UnsupportedError, match=r"the feature 0 has numbers about 1\.70002e\+09 that FP32 rounds"):
        read(LGB, content)


def test_a_feature_that_is_missing_at_0_in_some_splits_is_refused() -> None:
    content = Recorded("lgb-zero-as-missing.txt").content.decode()
    first = content.index("decision_type=") + len("decision_type=")
    kinds = content[first : content.index("\n", first)].split()
    mixed = content[:first] + " ".join(["10", *kinds[1:]]) + content[first + len(" ".join(kinds)) :]
    with pytest.raises(UnsupportedError, match="is missing where it is 0, but not in every split"):
        read(Recorded("lgb-zero-as-missing.txt"), mixed.encode())
