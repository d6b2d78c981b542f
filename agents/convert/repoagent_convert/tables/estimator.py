"""What is looked up in estimators of scikit-learn: inputs, categories, trees, and answers to rows made of these."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import UnsupportedError
from repoagent_convert.tables.foreign_graph import Input, short
from repoagent_convert.tables.tabular import ROWS, rows_about

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_TEXT: Final = ("good", "it's", "x", "well-known", "GOOD", "42")


def parts(model: Any) -> Iterator[Any]:
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


def inputs_of(model: Any, columns: Sequence[Sequence[str]]) -> list[Input]:
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
    by_name = [one for one in parts(model) if type(one).__name__ == "ColumnTransformer"] if names else []
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
    for one in parts(model):
        for _, transformer, columns in getattr(one, "transformers_", ()):
            for encoder in parts(transformer):
                if hasattr(encoder, "categories_"):
                    found.update(zip(_places(one, transformer, columns), encoder.categories_, strict=False))
    for place, known in found.items():
        if known.dtype.kind in "iuf" and (known.astype("float32") != known)[known == known].any():
            raise UnsupportedError(f"cannot be converted to ONNX: categories of the column {place} beyond FP32")
    return found


def _places(one: Any, transformer: Any, columns: Any) -> list[int]:
    """Where the columns of a transformer are among those of the ColumnTransformer ``one``."""
    import numpy as np

    given = getattr(transformer, "feature_names_in_", columns)
    if not isinstance(given, slice) and np.asarray(given).dtype.kind in "OU":
        names = [*one.feature_names_in_]
        return [names.index(name) for name in np.atleast_1d(given)]
    return [*np.atleast_1d(np.arange(one.n_features_in_)[given])]


def splits_of(part: Any) -> "Iterator[tuple[Array, Array, Array | None]]":
    """The splits of each tree: features, thresholds, and which send what is missing to the left (None: it is right)."""
    tree = getattr(part, "tree_", None)
    if tree is not None:
        splits = tree.feature >= 0
        yield tree.feature[splits], tree.threshold[splits], tree.missing_go_to_left[splits]
    for one in [tree for trees in getattr(part, "_predictors", ()) for tree in trees]:
        nodes = one.nodes[one.nodes["is_leaf"] == 0]
        yield nodes["feature_idx"], nodes["num_threshold"], None


def sample(model: Any, inputs: Sequence[Input]) -> "tuple[dict[str, Array], dict[str, Array] | str]":
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
    """Rows that a comparison is made on, the same each time."""
    import numpy as np

    random = np.random.default_rng(0)
    categories = _categories(model)
    words = [word for one in parts(model) for word in list(getattr(one, "vocabulary_", None) or ())[:1000]]
    numbers = [one for one in inputs if one.kind == "fp32"]
    width = sum(one.width for one in numbers)
    values = _numbers(model, random, width, missing)
    found, start, place = {}, 0, 0
    for one in inputs:
        if one.kind == "fp32":
            found[one.name] = values[:, start : start + one.width]
            for column in range(one.width):
                if place + column in categories:
                    known = categories[place + column].astype(np.float32)
                    known = np.append(known, np.nanmax(known) + np.array([1, 0.5], np.float32)) if unknown else known
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


def _numbers(model: Any, random: Any, width: int, missing: bool) -> "Array":
    """Numbers about the thresholds and means that the model has."""
    import numpy as np

    values = random.normal(size=(ROWS, width))
    for one in parts(model):  # Among neighbours that are as far as each other, graph and library choose others.
        known: Any = getattr(one, "_fit_X", None)
        if np.shape(known)[1:] == (width,):
            values[::2] = random.choice(known, ROWS // 2)
    for one in parts(model):
        mean: Any = getattr(one, "mean_", None)
        scale: Any = getattr(one, "scale_", None)
        if np.shape(mean) == np.shape(scale) == (width,) and width:
            values = values * scale + mean
            break
    splits = [(np.zeros(0, np.int64), np.zeros(0)), *(one[:2] for part in parts(model) for one in splits_of(part))]
    features, thresholds = (np.concatenate(column) for column in zip(*splits, strict=True))
    return rows_about(features, thresholds, values.astype(np.float32), random, missing)
