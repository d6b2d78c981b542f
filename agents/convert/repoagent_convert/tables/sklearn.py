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
from repoagent_convert.tables.estimator import inputs_of, parts, sample, splits_of
from repoagent_convert.tables.foreign_graph import Input, finished, short
from repoagent_convert.tables.tabular import TabularConverter

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
        inputs = inputs_of(model, job.settings["columns"])
        try:
            graph = _converted(model, inputs)
        except RepoAgentError:
            raise
        except Exception as error:  # whatever a library of others raises
            raise UnsupportedError(f"cannot be converted to ONNX: {short(error)}") from error
        job.progress(0, None, "comparing")
        import sklearn

        rows, expected = sample(model, inputs)
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


def _converted(model: Any, inputs: Sequence[Input]) -> Any:
    """The graph that skl2onnx makes, with what it is known to get wrong mended or refused."""
    import numpy as np
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.base import is_classifier

    for one in parts(model):
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
    types = [(one.name, kinds[one.kind]([None, one.width])) for one in inputs]
    opsets = {"": 21, "ai.onnx.ml": 3}
    try:
        options = {id(model): {"zipmap": False}} if is_classifier(model) else None
        graph = to_onnx(model, initial_types=types, options=options, target_opset=opsets)
    except NameError:  # a classifier without that option, such as LinearSVC, has a matrix anyway
        graph = to_onnx(model, initial_types=types, target_opset=opsets)
    return _mended(graph, {key: exact for one in parts(model) for key, exact in _trees(one)})


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
    """Each tree, by what it is known by in the graph: its thresholds rounded down, and where what is missing goes."""
    for features, thresholds, left in splits_of(part):
        down = _down(thresholds)
        for written in (thresholds, down):  # skl2onnx rounds those of some trees as it is done here
            yield _key(features, written), (down, left)


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
