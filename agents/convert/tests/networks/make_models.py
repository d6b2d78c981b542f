"""Writes models of Keras and TensorFlow, and records what their libraries make of them: ``make models``.

It runs in an environment that has them: ``make_models.py DIR`` writes each model to a folder of ``DIR``, with rows that
it has not seen and the answers; hostile ones too. ``data/models.npz`` has for each that is converted the graph that
tf2onnx wrote, the tensors, and the answers to the requests of the converter's own comparison. Tests read that.
"""

import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).parents[4]
sys.path[:0] = [str(ROOT), str(ROOT / "agents/convert")]

from repoagent_convert.networks import network  # noqa: E402
from repoagent_convert.networks import tensorflow as converters  # noqa: E402

from agents.convert.tests.networks import pieces  # noqa: E402
from repoagent.api import ConversionJob, ConversionSource  # noqa: E402

converters.KerasConverter().prepare()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

STORE = Path(__file__).with_name("data") / "models.npz"
ROWS = 20
random = np.random.default_rng(28)
recorded: dict[str, Any] = {}


def perceptron() -> Any:
    stack = [layers.Dense(16, activation="relu"), layers.BatchNormalization(), layers.Dense(3, activation="softmax")]
    return keras.Sequential([keras.Input((6,)), *stack])


def convolutions() -> Any:
    stack = [layers.Rescaling(1 / 255), layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D()]
    last = [layers.DepthwiseConv2D(3, padding="same"), layers.GlobalAveragePooling2D(), layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((12, 12, 3), name="image"), *stack, *last, layers.Dense(4, name="logits")])


def recurrent() -> Any:
    stack = [layers.Embedding(50, 8), layers.LSTM(8, return_sequences=True), layers.GRU(6)]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *stack, layers.Dense(1, activation="sigmoid")])


def two_inputs() -> Any:
    numbers, history = keras.Input((4,), name="numbers"), keras.Input((5,), name="history")
    both = layers.Concatenate()([layers.Dense(8, activation="tanh")(numbers), layers.Dense(8)(history)])
    kind = layers.Dense(3, activation="softmax", name="kind")(both)
    return keras.Model([numbers, history], [layers.Dense(1, name="price")(both), kind])


def transformer() -> Any:
    given = keras.Input((10, 8))
    inner = layers.LayerNormalization()(given + layers.MultiHeadAttention(2, 4)(given, given))
    return keras.Model(given, {"tokens": layers.Dense(2)(inner), "largest": keras.ops.max(inner, axis=(1, 2))})


KERAS: dict[str, Callable[[], Any]] = {
    "Keras, MLP": perceptron,
    "Keras, CNN": convolutions,
    "Keras, LSTM and GRU": recurrent,
    "Keras, two inputs": two_inputs,
    "Keras, transformer": transformer,
}


class Scores(tf.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Without Keras: names of a signature, one output without a second dimension."""

    def __init__(self) -> None:
        self.weights = tf.Variable(random.normal(size=(4, 3)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="features")])  # type: ignore[untyped-decorator]
    def serve(self, features: Any) -> Any:
        sums = features @ self.weights
        return {"scores": tf.nn.softmax(sums), "best": tf.argmax(sums, axis=1)}


def of_a_module(place: Path) -> Any:
    module = Scores()
    tf.saved_model.save(module, str(place), signatures={"serving_default": module.serve})


def of_keras(place: Path) -> Any:
    convolutions().export(str(place), verbose=False)


SAVED: dict[str, Callable[[Path], Any]] = {"SavedModel, module": of_a_module, "SavedModel, Keras": of_keras}


def hostile_module(attack: Callable[[Any], Any]) -> Callable[[Path], Any]:
    """A model whose function does something besides."""

    class Hostile(tf.Module):  # type: ignore[misc, name-defined, unused-ignore]
        @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def serve(self, x: Any) -> Any:
            return {"y": attack(x)}

    def write(place: Path) -> None:
        module = Hostile()
        tf.saved_model.save(module, str(place), signatures={"serving_default": module.serve})

    return write


def while_it_is_opened(attack: Callable[[], Any]) -> Callable[[Path], Any]:
    """A model whose resource does something when it is restored."""

    class Resource(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc, name-defined, unused-ignore]
        def _create_resource(self) -> Any:
            return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])

        def _initialize(self) -> None:
            attack()

    def write(place: Path) -> None:
        module = Scores()
        module.resource = Resource()
        tf.saved_model.save(module, str(place), signatures={"serving_default": module.serve})

    return write


def changed(place: Path, change: Callable[[str], str]) -> None:
    """A file of Keras with another configuration."""
    perceptron().save(place)
    with zipfile.ZipFile(place) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["config.json"] = change(parts["config.json"].decode()).encode()
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def layer_of(module: str, kind: str, config: dict[str, Any]) -> Callable[[str], str]:
    """The configuration with another layer instead of the first dense one."""

    def change(text: str) -> str:
        tree = json.loads(text)
        (one, *_) = (one for one in tree["config"]["layers"] if one["class_name"] == "Dense")
        one.update(module=module, class_name=kind, config=config, registered_name=None)
        one.pop("build_config", None)
        return json.dumps(tree)

    return change


def write_hostile(directory: Path) -> None:
    """``directory / NAME / model.keras`` or ``saved_model.pb``; each tries to make, or to read, a file beside."""
    outside = directory.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    command = f"touch {outside}/new"
    for name, write in {
        "python function": hostile_module(lambda x: tf.py_function(lambda one: one * 2, [x], tf.float32)),
        "numpy function": hostile_module(lambda x: tf.numpy_function(lambda one: one, [x], tf.float32)),
        "reads": hostile_module(
            lambda x: x * tf.cast(tf.strings.length(tf.io.read_file(f"{outside}/secret")), x.dtype)
        ),
        "writes": hostile_module(lambda x: (tf.io.write_file(f"{outside}/new", "x"), x)[1]),
        "lists": hostile_module(lambda x: x * tf.cast(tf.size(tf.io.matching_files(f"{outside}/*")), x.dtype)),
        "writes while it is opened": while_it_is_opened(lambda: tf.io.write_file(f"{outside}/new", "x")),
        "function that tries all": while_it_is_opened(
            lambda: tf.numpy_function(pieces.execute, [pieces.attack(outside)], tf.int64)
        ),
    }.items():
        write(directory / name)
    given = keras.Input((6,))
    system = f"__import__('os').system({command!r})"
    for name, suffix, code in (
        ("lambda", ".keras", system),
        ("lambda of HDF5", ".h5", system),
        ("lambda that tries all", ".keras", f"exec({pieces.attack(outside)!r}, {{}})"),
    ):
        (directory / name).mkdir(parents=True)
        function = eval(f"lambda x: ({code}, x)[1]")
        place = directory / name / f"model{suffix}"
        keras.Model(given, layers.Lambda(function, output_shape=(6,))(given)).save(place)
    for name, change in {
        "a class of os": layer_of("os", "system", {"command": command}),
        "a function of builtins": layer_of("builtins", "exec", {"source": f"import os; os.system({command!r})"}),
        "a program": layer_of("subprocess", "Popen", {"args": command, "shell": True}),
        "a table in another file": layer_of("keras.layers", "StringLookup", {"vocabulary": f"{outside}/secret"}),
    }.items():
        (directory / name).mkdir(parents=True)
        changed(directory / name / "model.keras", change)


def held_out(function: Callable[..., Any], shapes: dict[str, Any], place: Path) -> None:
    """Rows and answers, by the names that are served."""
    rows = {
        name: random.integers(0, 50, (ROWS, 9)).astype(np.int32)
        if kind == "int32"
        else random.normal(size=(ROWS, *shape)).astype(np.float32)
        for name, (shape, kind) in shapes.items()
    }
    found = function(rows)
    parts: dict[str, Any] = {f"rows/{name}": one for name, one in rows.items()}
    parts.update({f"answers/{name}": np.asarray(one) for name, one in found.items()})
    np.savez(place, **parts)


def record(name: str, converter: Any, folder: Path, file: str) -> tuple[Any, Any]:
    """Convert it, and keep what the converter sees. Returns the names of inputs and outputs."""
    seen: list[Any] = []
    answers: list[Any] = []

    def note(job: Any, graph: Any, inputs: Any, outputs: Any, ask: Any, title: str) -> Any:
        def asked(rows: Any) -> Any:
            answers.append(ask(rows))
            return answers[-1]

        seen.extend((graph, inputs, outputs, title))
        return network.written(job, graph, inputs, outputs, asked, title)

    options = {key: one.default for key, one in converter.options.items() if one.default is not None}
    plan = converter.plan(ConversionSource(folder, file, file), options)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch, patch.object(converters, "written", note):
        os.chdir(scratch)
        Path("target").mkdir()
        product = converter.build(ConversionJob(folder, Path("target"), plan.settings))
        os.chdir(before)
    graph, inputs, outputs, title = seen
    head = {"inputs": [asdict(one) for one in inputs], "outputs": [asdict(one) for one in outputs], "title": title}
    head["note"] = product.notes[0]
    recorded[f"{name}/head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    recorded[f"{name}/graph"] = np.frombuffer(graph.SerializeToString(), np.uint8)
    for turn, answer in enumerate(answers):
        recorded.update({f"{name}/answers/{turn}/{number}": one for number, one in enumerate(answer)})
    return inputs, outputs


def main(directory: Path) -> None:
    keras.utils.set_random_seed(28)
    for name, make in KERAS.items():
        folder = directory / name
        folder.mkdir(parents=True)
        model = make()
        model.save(folder / "model.keras")
        inputs, outputs = record(name, converters.KerasConverter(), folder, "model.keras")

        def ask(rows: Any, model: Any = model, outputs: Any = outputs) -> Any:
            given = list(rows.values())
            found = keras.tree.flatten(model(given[0] if len(given) == 1 else given, training=False))
            return {one.name: answer for one, answer in zip(outputs, found, strict=True)}

        held_out(ask, {one.name: (one.shape[1:], one.kind) for one in inputs}, folder / "held_out.npz")
    for name, write in SAVED.items():
        folder = directory / name
        write(folder)
        inputs, _ = record(name, converters.SavedModelConverter(), folder, "saved_model.pb")
        signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        call = lambda rows, signature=signature: signature(**{key: tf.constant(one) for key, one in rows.items()})  # noqa: E731
        held_out(call, {one.name: (one.shape[1:], one.kind) for one in inputs}, folder / "held_out.npz")
    write_hostile(directory / "hostile")
    STORE.parent.mkdir(exist_ok=True)
    np.savez_compressed(STORE, **recorded)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
