"""OpenVINO, and the two of its names that are private: the operator of paged attention, and a pass that inserts it.

The operator has more inputs in every version. Those that this project does not use are probed, and the operator is
tried beside NumPy before the first model runs on it.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.installing import install_hint
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

TRIED: Final = "2026.4.1"
"""The version that this was tried with. The operator changes with every version."""
_FEATURE: Final = "a decoder of paged attention on this machine"
_USED: Final = 13
_SINKS: Final = 20
_MOST_ERROR: Final = 1e-4


@cache
def openvino() -> Any:
    """OpenVINO: ``ov``, its operators ``op``, products by groups, the operator of paged attention and the pass.

    Raises:
        UnsupportedFeatureError: it is not installed, or another version than the one that was tried.
    """
    try:
        ov = importlib.import_module("openvino")
    except ImportError as error:
        raise UnsupportedFeatureError(
            _FEATURE, f"the package openvino is missing; {install_hint('repoagent-llm', 'openvino')}"
        ) from error
    if (version := ov.__version__.split("-")[0]) != TRIED:
        raise UnsupportedFeatureError(_FEATURE, f"openvino {version} is installed, and {TRIED} is what was tried")
    try:
        extension = importlib.import_module("openvino.op")._PagedAttentionExtension
        transform = importlib.import_module("openvino._offline_transformations").paged_attention_transformation
    except (AttributeError, ImportError) as error:
        raise UnsupportedFeatureError(_FEATURE, f"this openvino has another operator: {error}") from error
    op = importlib.import_module("openvino.opset13")
    grouped = importlib.import_module("openvino.opset17").grouped_matmul
    return SimpleNamespace(ov=ov, op=op, grouped=grouped, extension=extension, transform=transform)


@cache
def core() -> Any:
    """The ``Core`` of this process, which is never given back.

    Its plug-in gives the thread in which it is made a stack for signals. Where another thread ends it, the first keeps
    a pointer to memory that is gone, and the next signal that Python handles there ends the process.

    Threads are not pinned: the plug-in pins those of every model from the first core on, so that two models of one
    thread each would share one core.
    """
    found = openvino().ov.Core()
    found.set_property("CPU", {"ENABLE_CPU_PINNING": False})
    return found


def constant(array: Any) -> Any:
    """A constant that owns a copy of ``array``, which keeps its rank."""
    return openvino().op.constant(np.asarray(array, order="C"))


def integers(*values: int) -> Any:
    """A constant of int64 [n]."""
    return constant(np.array(values, np.int64))


def parameter(name: str, kind: str, shape: Sequence[int]) -> Any:
    """An input of a graph; -1: any size."""
    ov = openvino().ov
    node = ov.op.Parameter(getattr(ov.Type, kind), ov.PartialShape(list(shape)))
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def paged_attention(
    packed: Sequence[Any],
    caches: Sequence[Any],
    tables: Sequence[Any],
    longest: Any,
    *,
    kv_heads: int,
    head_size: int,
    window: int = 0,
    scale: float | None = None,
    sinks: npt.NDArray[np.float32] | None = None,
) -> Any:
    """Attention [T, heads * head size] of ``packed`` queries, keys and values [T, ...]; 0 is no window.

    ``tables``: past lengths, begins of sequences, blocks, begins of tables. ``scale``: of the scores, by the head size
    if None. ``sinks`` [heads]: scores of nothing, which take their part of the weights.
    """
    end = [
        constant(np.float32(head_size**-0.5 if scale is None else scale)),
        constant(np.int32(window)),
        constant(np.zeros(0, np.float32)),
        longest,
    ]
    rest = [constant(array) for array in _unused_inputs()]
    if sinks is not None:
        rest[_SINKS - _USED] = constant(sinks.reshape(1, -1, 1, 1))
    nodes = [*packed, *caches, *tables, *end, *rest]
    found = openvino().extension([node if hasattr(node, "get_node") else node.output(0) for node in nodes])
    info = found.get_rt_info()  # the plugin takes the shapes of the caches from it
    info["num_k_heads"] = info["num_v_heads"] = kv_heads
    info["k_head_size"] = info["v_head_size"] = head_size
    return found.output(0)


@cache
def _unused_inputs() -> tuple[npt.NDArray[Any], ...]:
    """What the pass puts into the inputs that are not used here."""
    model = _smallest_model()
    openvino().transform(model)
    found = next((node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"), None)
    if found is None:
        raise UnsupportedFeatureError(_FEATURE, "this openvino inserts no operator of paged attention")
    inputs = [found.input_value(place).get_node() for place in range(_USED, found.get_input_size())]
    if any(node.get_type_name() != "Constant" for node in inputs):
        raise UnsupportedFeatureError(_FEATURE, "this openvino's operator has inputs that are not known")
    return tuple(np.array(node.get_data()) for node in inputs)


def _smallest_model() -> Any:
    """One layer of attention with state, in public operators, as the pass expects it."""
    ov, op = openvino().ov, openvino().op
    ids, positions, mask = (parameter(n, "i64", [-1, -1]) for n in ("input_ids", "position_ids", "attention_mask"))
    beams = parameter("beam_idx", "i32", [-1])
    zero = constant(np.int64(0))
    table = constant(np.ones((4, 8), np.float32))
    hidden = op.gather(table, op.convert(ids, "i32"), constant(np.int32(0)))
    hidden = op.add(hidden, op.unsqueeze(op.convert(positions, "f32"), integers(2)))
    batch = op.gather(op.shape_of(ids, "i64"), integers(0), zero)

    def heads(scale: float) -> Any:
        x = op.matmul(hidden, constant(scale * np.eye(8, dtype=np.float32)), False, True)
        return op.transpose(op.reshape(x, integers(0, 0, 1, 8), True), integers(0, 2, 1, 3))

    parts, states = [], []
    for number, part in enumerate(("key", "value")):
        name = f"past_key_values.0.{part}present.0.{part}"
        start = op.broadcast(constant(np.float32(0)), op.concat([batch, integers(1), integers(0), integers(8)], 0))
        state = ov.opset6.read_value(start, name, ov.Type.f32, ov.PartialShape([-1, 1, -1, 8]))
        parts.append(op.concat([op.gather(state, beams, zero), heads(2.0 + number)], -2))
        states.append(ov.opset6.assign(parts[-1], name))
    bias = op.multiply(op.subtract(constant(np.float32(1)), op.convert(mask, "f32")), constant(np.float32(-1e9)))
    bias = op.unsqueeze(op.unsqueeze(bias, integers(1)), integers(1))
    mixed = op.scaled_dot_product_attention(heads(1.0), *parts, bias, constant(np.float32(1)), causal=False)
    flat = op.reshape(op.transpose(mixed, integers(0, 2, 1, 3)), integers(0, 0, 8), True)
    logits = op.matmul(flat, table, False, True)
    return ov.Model([op.result(logits)], states, [ids, positions, mask, beams], "probe")


@cache
def check_openvino() -> None:
    """Run the operator on this machine beside NumPy: two sequences, a prompt in pieces, a token each.

    Once as most models have it, once with a window and sinks.

    Raises:
        UnsupportedFeatureError: it cannot run, or computes something else.
    """
    try:
        trials = [_try_operator(), _try_operator(20, np.array([0.5, -1], np.float32))]
    except UnsupportedFeatureError:
        raise
    except Exception as error:  # whatever the plugin raises
        raise UnsupportedFeatureError(_FEATURE, f"openvino {TRIED} cannot run its operator here: {error}") from error
    worst = float(np.max([np.abs(found - expected).max() for found, expected in trials]))
    if not worst < _MOST_ERROR:
        raise UnsupportedFeatureError(
            _FEATURE, f"openvino {TRIED} computes another attention here: it differs by {worst:g}"
        )


def _try_operator(
    window: int = 0, sinks: npt.NDArray[np.float32] | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(what the operator gives for the last token of each of two texts, what it should be)."""
    ov, heads, size, lengths = openvino().ov, 2, 16, (39, 6)
    packed = [parameter(name, "f32", [-1, width]) for name, width in (("q", 32), ("k", 16), ("v", 16))]
    caches = [parameter(name, "dynamic", [-1] * 4) for name in ("key_cache.0", "value_cache.0")]
    tables = [parameter(name, "i32", [-1]) for name in ("past", "begins", "blocks", "block_begins")]
    longest = parameter("longest", "i32", [])
    mixed = paged_attention(packed, caches, tables, longest, kv_heads=1, head_size=size, window=window, sinks=sinks)
    model = ov.Model([openvino().op.result(mixed)], [*packed, *caches, *tables, longest], "trial")
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    request = core().compile_model(model, "CPU", settings).create_infer_request()
    random = np.random.default_rng(0)
    texts = [random.normal(size=(n, 64)).astype(np.float32) for n in lengths]
    cuts = (slice(0, 32), slice(32, 48), slice(48, 64))
    for node in caches:
        memory = ov.Tensor(np.zeros((3, 1, 32, size), np.float32))
        request.set_tensor(node.get_friendly_name(), memory)
    found = np.zeros((2, 32), np.float32)
    for starts, stops in (((0, 0), (33, 5)), ((33, 5), (38, 5)), ((38, 5), lengths)):
        runs = [(i, a, b) for i, (a, b) in enumerate(zip(starts, stops, strict=True)) if b > a]
        blocks = [[2, 0][: -(-b // 32)] if i == 0 else [1] for i, _, b in runs]
        feeds: dict[str, Any] = {
            name: np.concatenate([texts[i][a:b, cut] for i, a, b in runs])
            for name, cut in zip(("q", "k", "v"), cuts, strict=True)
        }
        feeds["past"] = [a for _, a, _ in runs]
        feeds["begins"] = np.cumsum([0, *(b - a for _, a, b in runs)])
        feeds["blocks"] = [number for table in blocks for number in table]
        feeds["block_begins"] = np.cumsum([0, *map(len, blocks)])
        feeds["longest"] = max(b for _, _, b in runs)
        arrays = {n: np.asarray(a, np.float32 if n in "qkv" else np.int32, order="C") for n, a in feeds.items()}
        for name, array in arrays.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        request.infer()
        for place, (i, _, _) in enumerate(runs):
            found[i] = request.get_output_tensor(0).data.reshape(-1, 32)[feeds["begins"][place + 1] - 1]
    seen = [text[-window:] for text in texts]
    nothing = np.full(heads, -np.inf, np.float32) if sinks is None else sinks
    expected = np.stack([_attend(*(text[:, cut] for cut in cuts), sinks=nothing) for text in seen])
    return found, expected


def _attend(q: Any, k: Any, v: Any, *, sinks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Attention of the last token over all, in NumPy; ``sinks`` [heads] take a part of the weights."""
    scores = q[-1].reshape(len(sinks), -1) @ k.T / np.sqrt(k.shape[1])
    most = np.maximum(scores.max(axis=1, keepdims=True), sinks[:, None])
    weights = np.exp(scores - most)
    total = weights.sum(axis=1, keepdims=True) + np.exp(sinks[:, None] - most)
    return np.asarray((weights / total @ v).reshape(-1), np.float32)
