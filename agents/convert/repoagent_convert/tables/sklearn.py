"""scikit-learn to ONNX, from pickles, files of joblib, and files of skops; skl2onnx converts."""

import gzip
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import (
    Archive,
    ConversionJob,
    ConverterOption,
    InvalidArgumentError,
    Product,
    RepoAgentError,
    UnsupportedError,
)
from repoagent.converters.option_values import truth
from repoagent_convert.model_file import produced
from repoagent_convert.tables.foreign_graph import Input, finished, short
from repoagent_convert.tables.tabular import ROWS, TabularConverter

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_TRUSTED: Final = (
    *("sklearn.tree._tree.Tree", "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"),
    *("sklearn.metrics._dist_metrics.EuclideanDistance64", "sklearn.neighbors._kd_tree.KDTree"),
    *("sklearn.metrics._scorer._PassthroughScorer", "sklearn.model_selection._split.StratifiedKFold"),
    *("sklearn.calibration._CalibratedClassifier", "sklearn.calibration._SigmoidCalibration", "numpy.dtype"),
)
"""Types that skops does not trust by itself, and that run nothing."""
_KINDS: Final = ("fp32", "string")
_LARGEST: Final = 1e30
_TEXT: Final = ("good", "it's", "x", "well-known", "GOOD", "42")


class SklearnConverter(TabularConverter):
    """An estimator that was pickled. Opening it runs what is in it."""

    version = "3"
    title = "scikit-learn"
    runs_code = True
    packages: tuple[str, ...] = ("scikit-learn", "skl2onnx", "onnx", "onnxruntime")
    libraries = ("pandas",)
    options = {
        **TabularConverter.options,
        "columns": ConverterOption(
            None, f"name:type of each column, such as age:fp32,sex:string; {' or '.join(_KINDS)}"
        ),
        "any_version": ConverterOption("false", "true: also a model of another version of scikit-learn"),
    }

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is a pickle, perhaps compressed, of scikit-learn."""
        with suppress(zlib.error, EOFError, gzip.BadGzipFile):
            if head[:2] == b"\x1f\x8b":
                head = zlib.decompressobj(31).decompress(head, 4096)
            elif head[:1] == b"x":
                head = zlib.decompressobj().decompress(head, 4096)
        return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and b"sklearn" in head

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """See :class:`TabularConverter`."""
        columns = [one.strip().rpartition(":") for one in options.get("columns", "").split(",") if one.strip()]
        for name, _, kind in columns:
            if not name or kind not in _KINDS:
                raise InvalidArgumentError(f"parameter 'columns': '{name}:{kind}' is not name:fp32 or name:string")
        return {
            **super().settings(options),
            "columns": [[name, kind] for name, _, kind in columns],
            "any_version": truth(options, "any_version"),
        }

    def prepare(self) -> None:
        """Import what looks at the machine, before the jail; not ONNX Runtime, which starts a thread."""
        import skl2onnx  # noqa: F401

    def load(self, path: Path) -> Any:
        """The object in a file."""
        import joblib

        return joblib.load(path)

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        job.progress(0, None, f"opening {job.settings['input']}")
        model = self._opened(job.source / job.settings["input"], job.settings["any_version"])
        job.progress(0, None, "converting")
        inputs = _inputs(model, job.settings["columns"])
        try:
            graph = _converted(model, inputs)
        except RepoAgentError:
            raise
        except Exception as error:  # whatever a library of others raises
            raise UnsupportedError(f"cannot be converted to ONNX: {short(error)}") from error
        job.progress(0, None, "comparing")
        import sklearn

        rows, expected = _sample(model, inputs)
        roles = _roles(model, [one.name for one in graph.graph.output])
        title = f"scikit-learn {sklearn.__version__}"
        result, compared = finished(graph, inputs, roles, rows, expected, job.settings, title)
        return produced(job, result, (f"estimator {type(model).__name__}", compared))

    def _opened(self, path: Path, any_version: bool) -> Any:
        from sklearn.base import BaseEstimator
        from sklearn.exceptions import InconsistentVersionWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not any_version:
                warnings.simplefilter("error", InconsistentVersionWarning)
            try:
                model = self.load(path)
            except InconsistentVersionWarning as error:
                raise InvalidArgumentError(
                    f"is of scikit-learn {error.original_sklearn_version}, and the environment has "
                    f"{error.current_sklearn_version}; use that version, or any_version = true"
                ) from None
            except RepoAgentError:
                raise
            except Exception as error:
                raise InvalidArgumentError(f"cannot be opened: {short(error)}") from error
        if not isinstance(model, BaseEstimator) or not hasattr(model, "predict"):
            raise UnsupportedError(f"is not an estimator that predicts, but {type(model).__name__}")
        return model


class SkopsConverter(SklearnConverter):
    """An estimator in a file of skops, which names its types; only known ones are made."""

    runs_code = False
    jailed = True
    packages = (*SklearnConverter.packages, "skops")

    def recognizes(self, head: bytes) -> bool:
        """Only the end of an archive shows what it is."""
        return False

    def recognizes_ends(self, head: bytes, tail: bytes) -> bool:
        """Whether an archive with these ends has the schema of skops."""
        return head[:4] == b"PK\x03\x04" and b"schema.json" in tail

    def prepare(self) -> None:
        """See :class:`SklearnConverter`."""
        super().prepare()
        import skops.io  # noqa: F401

    def load(self, path: Path) -> Any:
        """See :class:`SklearnConverter`."""
        with path.open("rb") as file:
            Archive(file, self.largest).check()
        from skops.io import get_untrusted_types, load

        if more := sorted(set(get_untrusted_types(file=path)) - {*_TRUSTED}):
            raise UnsupportedError(f"has types that are not trusted: {', '.join(more[:20])}")
        return load(path, trusted=list(_TRUSTED))


def _parts(model: Any) -> Iterator[Any]:
    """``model`` and all estimators in it, each once."""
    from sklearn.base import BaseEstimator

    pending, seen = [model], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, BaseEstimator):
            yield one
            pending += vars(one).values()
        elif isinstance(one, list | tuple):
            pending += one
        elif isinstance(one, dict):
            pending += one.values()
        elif getattr(getattr(one, "dtype", None), "kind", "") == "O":
            pending += one.ravel().tolist()


def _inputs(model: Any, columns: Sequence[Sequence[str]]) -> list[Input]:
    """What a request has: a matrix; or one input per column, where some are text."""
    if columns:
        return [Input(name, kind, 1) for name, kind in columns]
    first = model.steps[0][1] if hasattr(model, "steps") else model
    if hasattr(first, "vocabulary_") or not hasattr(model, "n_features_in_"):
        return [Input("input", "string", 1)]
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    texts = {place for place, known in _categories(model).items() if known.dtype.kind in "OUS"}
    if texts and not names:
        raise UnsupportedError("has columns of text without names; train it with a data frame")
    by_name = [one for one in _parts(model) if type(one).__name__ == "ColumnTransformer"] if names else []
    if texts or by_name:
        return [Input(name, "string" if place in texts else "fp32", 1) for place, name in enumerate(names)]
    return [Input("input", "fp32", int(model.n_features_in_))]


def _categories(model: Any) -> "dict[int, Array]":
    """Column, by its place -> the texts or numbers that an encoder was trained with.

    Raises:
        UnsupportedError: such a number is none of FP32, as whose a request has it.
    """
    first = model.steps[0][1] if hasattr(model, "steps") else model
    found: dict[int, Array] = dict(enumerate(getattr(first, "categories_", ())))
    for one in _parts(model):
        for name, transformer, _ in getattr(one, "transformers_", ()):
            for encoder in _parts(transformer):
                places = one._transformer_to_input_indices[name]
                found.update(zip(places, getattr(encoder, "categories_", ()), strict=False))
    for place, known in found.items():
        if known.dtype.kind in "iuf" and (known.astype("float32") != known)[known == known].any():
            raise UnsupportedError(f"cannot be converted to ONNX: categories of the column {place} beyond FP32")
    return found


def _converted(model: Any, inputs: Sequence[Input]) -> Any:
    """The graph that skl2onnx makes, with what it is known to get wrong mended or refused."""
    import numpy as np
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.base import is_classifier

    for one in _parts(model):
        if hasattr(one, "n_jobs"):
            one.n_jobs = 1
        if hasattr(one, "flatten_transform"):
            one.flatten_transform = False  # only its other value is converted; predictions are the same
        if getattr(one, "loss", None) == "modified_huber":
            raise UnsupportedError("cannot be converted to ONNX: the loss 'modified_huber', whose labels are by scores")
        if np.any(getattr(one, "is_categorical_", None)):
            raise UnsupportedError(f"cannot be converted to ONNX: categories of {type(one).__name__} itself")
        vocabulary = getattr(one, "vocabulary_", None)
        if isinstance(vocabulary, dict) and not all(str(word).isascii() for word in vocabulary):
            raise UnsupportedError("cannot be converted to ONNX: a vocabulary with words beyond ASCII")
    kinds = {"fp32": FloatTensorType, "string": StringTensorType}
    graph = to_onnx(
        model,
        initial_types=[(one.name, kinds[one.kind]([None, one.width])) for one in inputs],
        options={id(model): {"zipmap": False}} if is_classifier(model) else None,
        target_opset={"": 21, "ai.onnx.ml": 3},
    )
    return _mended(graph, {key: exact for one in _parts(model) for key, exact in _trees(one)})


def _mended(graph: Any, trees: "Mapping[bytes, tuple[Array, Array | None]]") -> Any:
    """``graph`` with the splits of the library's ``trees``, its categories, and texts compared in no language."""
    nodes: list[Any] = []
    for node in graph.graph.node:
        if node.op_type == "StringNormalizer":  # its default is a language that small images lack
            _set(node, "locale", "C")
        elif node.op_type.startswith("TreeEnsemble"):
            _mend(node, trees)
        elif node.op_type == "OneHotEncoder":
            nodes += _whole(node, nodes)
        nodes.append(node)
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    return graph


def _whole(encoder: Any, before: Sequence[Any]) -> list[Any]:
    """What lets an encoder of whole numbers take others as unknown; of skl2onnx, it gets 1.5 cut to 1."""
    from onnx import TensorProto, helper

    known = next((one.ints for one in encoder.attribute if one.name == "cats_int64s"), None)
    if known is None:
        return []
    name = encoder.input[0]
    (cast,) = [one for one in before if name in one.output]
    unknown = next(number for number in range(len(known) + 1) if number not in known)
    encoder.input[0] = f"{name}/known"
    return [
        helper.make_node("Cast", [cast.input[0]], [f"{name}/given"], to=TensorProto.FLOAT),
        helper.make_node("Cast", [name], [f"{name}/whole"], to=TensorProto.FLOAT),
        helper.make_node("Equal", [f"{name}/given", f"{name}/whole"], [f"{name}/is_whole"]),
        helper.make_node("Constant", [], [f"{name}/unknown"], value_int=unknown),
        helper.make_node("Where", [f"{name}/is_whole", name, f"{name}/unknown"], [f"{name}/known"]),
    ]


def _set(node: Any, name: str, value: Any) -> None:
    from onnx import helper

    for attribute in [one for one in node.attribute if one.name == name]:
        node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(name, value))


def _key(features: "Array", thresholds: "Array") -> bytes:
    """What a tree is known by in the graph: the features and thresholds of its splits, in order."""
    import numpy as np

    return np.asarray(features, np.int64).tobytes() + np.asarray(thresholds, np.float32).tobytes()


def _down(thresholds: "Array") -> "Array":
    """The largest float32 that is not above: of the numbers of requests, the same ones are less than or equal to it."""
    import numpy as np

    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)


def _trees(part: Any) -> "Iterator[tuple[bytes, tuple[Array, Array | None]]]":
    """Each tree: its thresholds, and which splits send what is missing to the left (None: it is right)."""
    tree = getattr(part, "tree_", None)
    if tree is not None:
        splits = tree.feature >= 0
        down = _down(tree.threshold[splits])
        for thresholds in (tree.threshold[splits], down):  # skl2onnx rounds those of some trees as it is done here
            yield _key(tree.feature[splits], thresholds), (down, tree.missing_go_to_left[splits])
    for one in [tree for trees in getattr(part, "_predictors", ()) for tree in trees]:
        nodes = one.nodes[one.nodes["is_leaf"] == 0]
        yield _key(nodes["feature_idx"], nodes["num_threshold"]), (_down(nodes["num_threshold"]), None)


def _mend(node: Any, known: "Mapping[bytes, tuple[Array, Array | None]]") -> None:
    """Round thresholds down, so that no float32 changes sides, and send what is missing where the library does."""
    import numpy as np

    given: dict[str, Any] = {one.name: one for one in node.attribute}
    trees, values = np.array(given["nodes_treeids"].ints), np.array(given["nodes_values"].floats, np.float32)
    splits = np.array([mode != b"LEAF" for mode in given["nodes_modes"].strings])
    features = np.array(given["nodes_featureids"].ints)
    former = given.get("nodes_missing_value_tracks_true")
    missing = np.array(former.ints if former is not None and former.ints else np.zeros(len(values)), np.int64)
    for number in np.unique(trees):
        place = np.flatnonzero(splits & (trees == number))
        thresholds, left = known.get(_key(features[place], values[place]), (None, None))
        if thresholds is None:
            continue
        values[place] = thresholds
        if left is not None:
            missing[place] = left
    _set(node, "nodes_values", values.tolist())
    _set(node, "nodes_missing_value_tracks_true", missing.tolist())


def _roles(model: Any, outputs: Sequence[str]) -> dict[str, str]:
    """What each output of skl2onnx is."""
    from sklearn.base import is_classifier, is_regressor

    if is_regressor(model):
        return {"prediction": outputs[0]}
    second = "probabilities" if is_classifier(model) and hasattr(model, "predict_proba") else "scores"
    return dict(zip(("label", second), outputs, strict=False))


def _sample(model: Any, inputs: Sequence[Input]) -> "tuple[dict[str, Array], dict[str, Array] | str]":
    """Rows, and what the library answers: with missing numbers and unknown texts, unless it refuses these."""
    reason = ""
    for missing, unknown in ((True, True), (False, True), (True, False), (False, False)):
        rows = _rows(model, inputs, missing, unknown)
        try:
            return rows, _expected(model, inputs, rows)
        except ImportError as error:
            return rows, short(error)
        except Exception as error:  # whatever a library of others raises
            reason = short(error)
    raise UnsupportedError(f"cannot be compared: scikit-learn itself takes none of the rows: {reason}")


def _expected(model: Any, inputs: Sequence[Input], rows: Mapping[str, "Array"]) -> dict[str, "Array"]:
    from sklearn.base import is_classifier, is_regressor

    data: Any = rows[inputs[0].name]
    if len(inputs) > 1:
        import pandas as pd

        data = pd.DataFrame({name: values.ravel() for name, values in rows.items()})
    elif inputs[0].kind == "string":
        data = data.ravel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {"prediction" if is_regressor(model) else "label": model.predict(data)}
        if hasattr(model, "predict_proba") and is_classifier(model):
            probabilities = model.predict_proba(data)
            if not isinstance(probabilities, list):
                found["probabilities"] = probabilities
        elif hasattr(model, "decision_function"):
            found["scores"] = model.decision_function(data)
        elif hasattr(model, "cluster_centers_"):
            found["scores"] = model.transform(data)
    return found


def _rows(model: Any, inputs: Sequence[Input], missing: bool, unknown: bool) -> dict[str, "Array"]:
    """Rows that a comparison is made on, the same each time: about thresholds and means that the model has."""
    import numpy as np

    random = np.random.default_rng(0)
    categories = _categories(model)
    words = [word for one in _parts(model) for word in list(getattr(one, "vocabulary_", None) or ())[:1000]]
    numbers = [one for one in inputs if one.kind == "fp32"]
    width = sum(one.width for one in numbers)
    values = np.clip(_numbers(model, random, width), -_LARGEST, _LARGEST).astype(np.float32)
    if missing:
        values[random.random(values.shape) < 0.05] = np.nan
    found, start, place = {}, 0, 0
    for one in inputs:
        if one.kind == "fp32":
            found[one.name] = values[:, start : start + one.width]
            for column in range(one.width):
                if place + column in categories:
                    known = categories[place + column].astype(np.float32)
                    known = np.append(known, np.nanmax(known) + np.float32([1, 0.5])) if unknown else known
                    found[one.name][:, column] = random.choice(known, ROWS)
            start += one.width
        elif place in categories:
            texts = [*categories[place].tolist(), *(["an unknown text"] if unknown else [])]
            found[one.name] = random.choice(np.array(texts, object), (ROWS, 1))
        else:
            sizes = random.integers(1, 12, ROWS)
            lines = [" ".join(random.choice([*words, *_TEXT], size)) for size in sizes]
            found[one.name] = np.array(lines, object).reshape(-1, 1)
        place += one.width
    return found


def _numbers(model: Any, random: Any, width: int) -> "Array":
    import numpy as np

    values = random.normal(size=(ROWS, width))
    for one in _parts(model):
        mean: Any = getattr(one, "mean_", None)
        scale: Any = getattr(one, "scale_", None)
        if np.shape(mean) == np.shape(scale) == (width,) and width:
            values = values * scale + mean
            break
    for feature, thresholds in _thresholds(model).items():
        if feature < width:
            chosen = random.random(ROWS) < 0.5
            values[chosen, feature] = random.choice(np.array(thresholds), chosen.sum())
            values[chosen, feature] *= 1 + random.choice([-1e-3, 0, 1e-3], chosen.sum())
    return np.asarray(values)


def _thresholds(model: Any) -> dict[int, list[float]]:
    """The thresholds of trees, by the feature that they are compared with."""
    found: dict[int, list[float]] = {}
    for one in _parts(model):
        if hasattr(one, "tree_"):
            for feature, threshold in zip(one.tree_.feature.tolist(), one.tree_.threshold.tolist(), strict=True):
                if feature >= 0:
                    found.setdefault(feature, []).append(threshold)
        for trees in getattr(one, "_predictors", ()):
            for tree in trees:
                for node in tree.nodes[tree.nodes["is_leaf"] == 0]:
                    found.setdefault(int(node["feature_idx"]), []).append(float(node["num_threshold"]))
    return {feature: [one for one in values if abs(one) < _LARGEST] or [0.0] for feature, values in found.items()}
