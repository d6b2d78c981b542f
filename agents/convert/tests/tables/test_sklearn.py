"""Kinds of models of scikit-learn: each answers as the library does on rows of its own, or is refused by name.

They need scikit-learn, skl2onnx, skops and pandas: ``make models`` installs these and runs this.
"""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_convert.tables.sklearn import SklearnConverter, SkopsConverter

from repoagent.api import ConversionJob, ConversionSource
from repoagent.beneath import jail
from repoagent.cli.main import program
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnsupportedError

for name in ("skl2onnx", "skops.io", "onnx"):
    pytest.importorskip(name)
pd = pytest.importorskip("pandas")

import joblib  # noqa: E402
import onnxruntime as ort  # noqa: E402
import sklearn  # noqa: E402
import skops.io  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.datasets import make_classification, make_regression  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer  # noqa: E402
from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: E402
from sklearn.impute import KNNImputer, SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC, SVR, LinearSVC  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

N, TRAINED = 900, 600
random = np.random.default_rng(28)
X, Y = make_classification(N, 12, n_informative=8, n_classes=3, random_state=0)
XR, YR = make_regression(N, 12, noise=3, random_state=0)
X, XR = X.astype(np.float32), XR.astype(np.float32)
NAN = np.where(random.random(XR.shape) < 0.05, np.nan, XR).astype(np.float32)
GRID = np.random.default_rng(1).integers(0, 6, (N, 4)).astype(np.float32)
FRAME = pd.DataFrame(
    {
        "age": random.normal(40, 10, N).astype(np.float32),
        "fare": random.exponential(30, N).astype(np.float32),
        "sex": random.choice(["f", "m"], N),
        "port": random.choice(["S", "C", "Q"], N),
    }
)
NUMBERED = FRAME[["age"]].assign(
    rooms=random.integers(0, 5, N).astype(np.float32),
    paid=random.random(N) < 0.5,
    shop=(1 << 24) + random.integers(0, 4, N),
)
TAKEN = (((FRAME.age < 38) & (FRAME.sex == "f")) | (FRAME.fare > 60)).astype(int).to_numpy()
WORDS = ["good", "bad", "fine", "awful", "great", "poor", "film", "plot", "actor", "scene", "the", "a", "of", "and"]
TEXTS = np.array([" ".join(random.choice(WORDS, random.integers(4, 20))) for _ in range(N)], object)
LIKED = np.array([int("good" in text) for text in TEXTS])


def columns(**more: Any) -> Any:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return ColumnTransformer(
        [("n", numbers, ["age", "fare"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["sex", "port"])], **more
    )


def one_hot(*names: str) -> Any:
    return ColumnTransformer([("c", OneHotEncoder(handle_unknown="ignore"), [*names])], remainder="passthrough")


UNKNOWN: dict[str, Any] = {"handle_unknown": "use_encoded_value", "unknown_value": -1}


def ordinal() -> Any:
    return ColumnTransformer([("c", OrdinalEncoder(**UNKNOWN), ["sex", "port"])], remainder="passthrough")


KINDS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "scaler, logistic regression": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), X, Y),
    "text labels": (LogisticRegression, X, np.array(["a", "b", "c"])[Y]),
    "random forest": (lambda: RandomForestClassifier(20), X, Y),
    "random forest, regression": (lambda: RandomForestRegressor(20), XR, YR),
    "gradient boosting": (lambda: GradientBoostingClassifier(n_estimators=20), X, Y),
    "histogram gradient boosting": (lambda: HistGradientBoostingClassifier(max_iter=20), X, Y),
    "histogram gradient boosting, missing": (lambda: HistGradientBoostingRegressor(max_iter=20), NAN, YR),
    "SVC, calibrated": (lambda: make_pipeline(StandardScaler(), CalibratedClassifierCV(SVC(), ensemble=False)), X, Y),
    "SVC, binary": (SVC, X, (Y > 0).astype(int)),
    "linear SVC": (LinearSVC, X, Y),
    "linear SVC, binary": (LinearSVC, X, (Y > 0).astype(int)),
    "stochastic gradient descent, binary": (lambda: SGDClassifier(random_state=0), X, (Y > 0).astype(int)),
    "SVR": (SVR, XR, YR),
    "KMeans": (lambda: KMeans(4, n_init=3), X, None),
    "isolation forest": (lambda: IsolationForest(n_estimators=20, random_state=0), X, None),
    "nearest neighbours": (KNeighborsClassifier, X, Y),
    "MLP": (lambda: MLPClassifier((16,), max_iter=40), X, Y),
    "naive Bayes": (GaussianNB, X, Y),
    "PCA, ridge": (lambda: make_pipeline(StandardScaler(), PCA(5), Ridge()), XR, YR),
    "voting": (
        lambda: VotingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier(10))], voting="soft"),
        X,
        Y,
    ),
    "stacking": (lambda: StackingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier(5))]), X, Y),
    "grid search": (lambda: GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}), X, Y),
    "polynomial, ridge": (lambda: make_pipeline(PolynomialFeatures(2), Ridge()), XR, YR),
    "gaussian process": (lambda: GaussianProcessRegressor(random_state=0), XR[:, :3], YR),
    "several labels": (lambda: MultiOutputClassifier(LogisticRegression()), X, np.c_[Y, Y > 0].astype(int)),
    "several labels, random forest": (lambda: RandomForestClassifier(10), X, np.c_[Y, Y > 0].astype(int)),
    "quadratic discriminant": (lambda: QuadraticDiscriminantAnalysis(reg_param=0.1), X, Y),
    "imputed by neighbours": (lambda: make_pipeline(KNNImputer(), Ridge()), NAN, YR),
    "several numbers": (lambda: MultiOutputRegressor(Ridge()), XR, np.c_[YR, -YR]),
    "columns, logistic regression": (lambda: make_pipeline(columns(), LogisticRegression()), FRAME, TAKEN),
    "columns, random forest": (lambda: make_pipeline(columns(), RandomForestClassifier(20)), FRAME, TAKEN),
    "columns, by position": (
        lambda: make_pipeline(
            ColumnTransformer([("c", OneHotEncoder(), [2, 3]), ("n", StandardScaler(), slice(0, 2))]),
            LogisticRegression(),
        ),
        FRAME,
        TAKEN,
    ),
    "columns of whole numbers": (
        lambda: make_pipeline(one_hot("rooms", "paid"), LogisticRegression()),
        NUMBERED[["age", "rooms", "paid"]],
        (NUMBERED.rooms % 2).astype(int).to_numpy(),
    ),
    "columns, histogram boosting": (
        lambda: make_pipeline(ordinal(), HistGradientBoostingClassifier(max_iter=20)),
        FRAME,
        TAKEN,
    ),
    "TF-IDF": (lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()), TEXTS, LIKED),
}
REFUSED: dict[str, tuple[Callable[[], Any], Any, Any, str]] = {
    "TF-IDF beyond ASCII": (
        lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()),
        np.array([text.replace("good", "größe") for text in TEXTS], object),
        LIKED,
        "a vocabulary with words beyond ASCII",
    ),
    "TF-IDF of characters": (
        lambda: make_pipeline(TfidfVectorizer(analyzer="char_wb"), LogisticRegression()),
        TEXTS,
        LIKED,
        "cannot be converted to ONNX: .*tokenizer='word'",
    ),
    "TF-IDF of pairs, beside words of a letter": (
        lambda: make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression()),
        TEXTS,
        LIKED,
        "answers differently from scikit-learn .*: 'probabilities' by up to",
    ),
    "hashing": (
        lambda: make_pipeline(HashingVectorizer(n_features=64), LogisticRegression()),
        TEXTS,
        LIKED,
        "cannot be converted to ONNX: .*HashingVectorizer",
    ),
    "numbers beyond FP32": (
        lambda: make_pipeline(one_hot("shop"), LogisticRegression()),
        NUMBERED[["age", "shop"]],
        TAKEN,
        "cannot be converted to ONNX: categories of the column 1 beyond FP32",
    ),
    "labels by another rule": (
        lambda: SGDClassifier(loss="modified_huber", random_state=0),
        X,
        Y,
        "cannot be converted to ONNX: the loss 'modified_huber'",
    ),
    "categories of histogram boosting": (
        lambda: HistGradientBoostingClassifier(max_iter=5, categorical_features=["rooms"]),
        NUMBERED[["age", "rooms"]],
        TAKEN,
        "cannot be converted to ONNX: categories of HistGradientBoostingClassifier itself",
    ),
    "neighbours as far as each other": (
        KNeighborsClassifier,
        GRID,
        (GRID.sum(axis=1) > 9).astype(int),
        "answers differently from scikit-learn .*: 'probabilities' by up to",
    ),
    "a function": (
        lambda: make_pipeline(FunctionTransformer(np.log1p), Ridge()),
        np.abs(XR),
        YR,
        "cannot be converted to ONNX: .*FunctionTransformer",
    ),
}


def fitted(make: Callable[[], Any], data: Any, target: Any) -> Any:
    return make().fit(data[:TRAINED], None if target is None else target[:TRAINED])


def build(directory: Path, model: Any, dump: Callable[..., Any] = joblib.dump, **options: str) -> Any:
    converter = SkopsConverter() if dump is skops.io.dump else SklearnConverter()
    source, target = directory / "source", directory / "target"
    source.mkdir(exist_ok=True)
    target.mkdir(exist_ok=True)
    dump(model, source / "model")
    given = {name: one.default for name, one in converter.options.items() if one.default is not None} | options
    plan = converter.plan(ConversionSource(source, "model", "1/model"), given)
    product = converter.build(ConversionJob(source, target, plan.settings))
    session = ort.InferenceSession((target / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    return product, session


def answers(session: ort.InferenceSession, data: Any) -> dict[str, Any]:
    inputs = [one.name for one in session.get_inputs()]
    if isinstance(data, pd.DataFrame):
        given = {name: data[[name]].to_numpy() for name in inputs}
        given = {name: one if one.dtype == object else one.astype(np.float32) for name, one in given.items()}
    else:
        given = {inputs[0]: data if data.ndim == 2 else data.reshape(-1, 1)}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))


@pytest.mark.kinds("accepted", "scikit-learn")
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_answers_as_the_library_does(name: str, tmp_path: Path) -> None:
    make, data, target = KINDS[name]
    model = fitted(make, data, target)
    held_out = data[TRAINED:]
    product, session = build(tmp_path, model)
    assert re.search(r"compared with scikit-learn .*: 256 rows, largest difference", product.notes[-1]), product.notes
    found = answers(session, held_out)
    wanted = np.asarray(model.predict(held_out)).reshape(len(held_out), -1)
    if "prediction" in found:
        np.testing.assert_allclose(found["prediction"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
        return
    sure = np.ones(len(wanted), bool)
    if "probabilities" in found:
        best = np.sort(model.predict_proba(held_out), axis=1)
        sure = best[:, -1] - best[:, -2] > 1e-4  # trees have equal votes
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(held_out), atol=1e-5)
    assert (found["label"] == wanted)[sure].all()
    for tensors, place in ((session.get_inputs(), "inputs"), (session.get_outputs(), "outputs")):
        assert [one.shape for one in tensors] == [["batch", *one["dims"]] for one in product.annotations[place]]


@pytest.mark.parametrize("name", ["random forest", "random forest, regression", "isolation forest"])
def test_what_is_missing_goes_where_the_library_sends_it(name: str, tmp_path: Path) -> None:
    """skl2onnx 1.20 sends it to the right in all trees that were trained without, and raises nothing."""
    make, data, target = KINDS[name]
    model = fitted(make, data, target)
    rows = data[TRAINED:].copy()
    rows[random.random(rows.shape) < 0.1] = np.nan
    found = answers(build(tmp_path, model)[1], rows)
    numbers = next(found[role] for role in ("prediction", "probabilities", "scores") if role in found)
    known = getattr(model, "predict_proba", getattr(model, "decision_function", model.predict))
    np.testing.assert_allclose(numbers.squeeze(), known(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "encoder", [OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder(**UNKNOWN), TargetEncoder()], ids=str
)
def test_a_category_that_is_not_whole_is_unknown(encoder: Any, tmp_path: Path) -> None:
    """As it is to the library. The graph of skl2onnx 1.20 cuts 1.5 to 1 in front of a OneHotEncoder."""
    make = lambda: make_pipeline(  # noqa: E731
        ColumnTransformer([("c", encoder, ["rooms"])], remainder="passthrough"), LogisticRegression()
    )
    model = fitted(make, NUMBERED[["age", "rooms"]], (NUMBERED.rooms % 2).astype(int).to_numpy())
    rooms = np.array([1, 1.5, -0.5, 0.999, 4, 4.5, 7, np.nextafter(np.float32(2), 3), 1e30], np.float32)
    rows = pd.DataFrame({"age": np.float32(40), "rooms": rooms})
    found = answers(build(tmp_path, model)[1], rows)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=1e-5)


@pytest.mark.kinds("refused by name", "scikit-learn")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    make, data, target, text = REFUSED[name]
    with pytest.raises(RepoAgentError, match=text):
        build(tmp_path, fitted(make, data, target))


@pytest.mark.parametrize(
    "name", ["scaler, logistic regression", "random forest", "histogram gradient boosting", "columns, random forest"]
)
def test_a_file_of_skops_answers_as_its_pickle_does(name: str, tmp_path: Path) -> None:
    make, data, target = KINDS[name]
    model = fitted(make, data, target)
    found = answers(build(tmp_path, model, skops.io.dump)[1], data[TRAINED:])
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(data[TRAINED:]), atol=1e-5)


def test_types_that_skops_does_not_know_are_refused_with_their_names(tmp_path: Path) -> None:
    model = fitted(lambda: make_pipeline(FunctionTransformer(sklearn.utils.shuffle), Ridge()), XR, YR)
    with pytest.raises(UnsupportedError, match=r"has types that are not trusted: sklearn\.utils"):
        build(tmp_path, model, skops.io.dump)


def test_a_wrong_conversion_is_refused_with_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from repoagent_convert.tables import sklearn as module

    converted = module._converted

    def wrong(model: Any, inputs: Any) -> Any:
        graph = converted(model, inputs)
        model.named_steps["logisticregression"].coef_ *= 1.01
        return graph

    monkeypatch.setattr(module, "_converted", wrong)
    make, data, target = KINDS["scaler, logistic regression"]
    with pytest.raises(InternalError, match=r"answers differently from scikit-learn .*: 'probabilities' by up to 0"):
        build(tmp_path, fitted(make, data, target))


def test_another_version_of_the_library_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    model = fitted(LogisticRegression, X, Y)

    def dump(model: Any, path: Path) -> None:
        content = pickle.dumps(model)
        now = sklearn.__version__.encode()
        path.write_bytes(content.replace(now, b"1.0.9"[: len(now)]))

    with pytest.raises(InvalidArgumentError, match=r"is of scikit-learn 1\.0\.9, and the environment has"):
        build(tmp_path, model, dump)
    assert build(tmp_path, model, dump, any_version="true")


@pytest.mark.parametrize("compress", [0, "zlib", "gzip"])
def test_a_compressed_pickle_is_known_by_its_content(compress: Any, tmp_path: Path) -> None:
    joblib.dump(fitted(LogisticRegression, X, Y), tmp_path / "m", compress=compress)
    assert SklearnConverter().recognizes((tmp_path / "m").read_bytes()[:4096])


def test_names_and_doubles_are_those_asked_for(tmp_path: Path) -> None:
    model = fitted(LogisticRegression, X, Y)
    _, session = build(tmp_path, model, names="mlserver", input_type="fp64")
    assert [one.type for one in session.get_inputs()] == ["tensor(double)"]
    found = answers(session, X[TRAINED:].astype(np.float64))
    assert found.keys() == {"predict", "predict_proba"}
    _, session = build(tmp_path, model, names="triton-fil")
    assert [one.name for one in (*session.get_inputs(), *session.get_outputs())] == ["input__0", "output__0"]


@pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
@pytest.mark.parametrize("dump", [joblib.dump, skops.io.dump])
def test_a_model_is_converted_in_the_jail(dump: Callable[..., Any], tmp_path: Path) -> None:
    make, data, target = KINDS["columns, random forest"]
    dump(fitted(make, data, target), tmp_path / "model")
    result = CliRunner().invoke(program, ["convert", str(tmp_path / "model"), "--allow-code-conversion"])
    assert result.exit_code == 0, result.output
    assert "compared with scikit-learn" in result.stderr
    assert 'name: "sex"\n  data_type: TYPE_STRING' in result.stdout


@pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")
def test_a_hostile_pickle_of_scikit_learn_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return exec, (f"__import__('os').system('touch {tmp_path}/done')  # sklearn",)

    (tmp_path / "model").write_bytes(pickle.dumps(Evil()))
    result = CliRunner().invoke(program, ["convert", str(tmp_path / "model"), "--allow-code-conversion"])
    assert isinstance(result.exception, RepoAgentError)
    assert "is not an estimator that predicts" in str(result.exception)
    assert not (tmp_path / "done").exists()
