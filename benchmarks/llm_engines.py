"""The servers that llm_peers.py compares: one checkpoint, each in a session of its own, on a free port.

All answer OpenAI's ``/v1/completions`` over the same model, on all cores, sixteen sequences at once and no cache of
prompts. ``fp32`` is float32 everywhere. ``short`` is what each of them serves fastest of eight and sixteen bits without
a calibration: eight-bit weights, and bfloat16 for vLLM. ``int4``: weights in blocks of 32, which vLLM lacks. Ours on
pages rounds activations in the last two, as OpenVINO does by default, and so as openvino-genai does.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from executor_runs import LENGTH
from llm_folder import make_repository
from repoagent_llm.builder import Form
from repoagent_llm.builder.safetensors import Checkpoint
from servers import Missing, Server, free_ports, output, repoagent, running, wait_until_ready

SEQUENCES = 16
START_SECONDS = 600.0
"""vLLM compiles the model first."""
OURS, OURS_PAGED = "repoagent", "repoagent, pages"
PRECISIONS = ("fp32", "short", "int4")
HERE = Path(__file__).parent
PORT = "{port}"
#: Without the first vLLM leaves one core to its front end.
VLLM_ENVIRONMENT = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx = {sequences}, {context}
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.n_batch = params.n_ubatch = 512
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start: the model of ``checkpoint`` at a precision, with the Python that the engine is installed for."""

    folder: Path
    checkpoint: Path
    python: str
    precision: str


Start = Callable[[Wanted], AbstractContextManager[Server]]


class Unserved(Exception):
    """The engine has no such precision without a calibrated checkpoint."""


def cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def ours(form: Form, wanted: Wanted) -> Iterator[Server]:
    """The backend ``llm``, as it is installed here."""
    parameters = {"max_seq_len": str(LENGTH), "enable_kv_cache_reuse": "false"}
    if form is Form.PAGED and wanted.precision != "fp32":
        parameters["exact"] = "false"
    precision = {"short": "int8"}.get(wanted.precision, wanted.precision)
    make_repository(wanted.folder, wanted.checkpoint, parameters, precision, form)
    with repoagent(OURS, wanted.folder, ["--allow-openai=true"]) as server:
        yield server


@contextmanager
def llama(wanted: Wanted) -> Iterator[Server]:
    """llama.cpp's server, in xllamacpp."""
    version = installed(wanted.python, "xllamacpp")
    model = gguf_file(wanted.checkpoint, {"fp32": "F32", "short": "Q8_0", "int4": "Q4_0"}[wanted.precision])
    program = LLAMA.format(sequences=SEQUENCES, context=SEQUENCES * LENGTH)
    with peer("llama.cpp", version, wanted, ["-c", program, str(model), PORT, str(cores())]) as server:
        yield server


@contextmanager
def openvino(wanted: Wanted) -> Iterator[Server]:
    """The pipeline of openvino-genai, behind llm_openvino.py."""
    version = installed(wanted.python, "openvino-genai")
    model = gguf_file(wanted.checkpoint, {"fp32": "F16", "short": "Q8_0", "int4": "Q4_0"}[wanted.precision])
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    properties = json.dumps(exact if wanted.precision == "fp32" else {})
    arguments = [str(HERE / "llm_openvino.py"), str(model), PORT, str(cores()), str(SEQUENCES), properties]
    with peer("openvino-genai", version, wanted, arguments) as server:
        yield server


@contextmanager
def vllm(wanted: Wanted) -> Iterator[Server]:
    """vLLM on the CPU."""
    version = installed(wanted.python, "vllm-cpu")
    if wanted.precision == "int4":
        raise Unserved
    kind = {"fp32": "float32", "short": "bfloat16"}[wanted.precision]
    arguments = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", PORT]
    arguments += ["--model", str(wanted.checkpoint), "--served-model-name", "m", "--dtype", kind]
    arguments += ["--max-model-len", str(LENGTH), "--max-num-seqs", str(SEQUENCES), "--no-enable-prefix-caching"]
    with peer("vLLM", version, wanted, arguments, VLLM_ENVIRONMENT) as server:
        yield server


def gguf_file(checkpoint: Path, kind: str) -> Path:
    """The checkpoint with its tokenizer as a gguf file, written once."""
    path = checkpoint.parent / f"{kind}.gguf"
    if not path.exists():
        try:
            write_gguf(checkpoint, path, kind, tokenizer=json.loads((checkpoint / "tokenizer.json").read_text()))
        except ImportError as error:
            raise Missing("gguf is not installed; `make bench-table-llm` does it") from error
    return path


def write_gguf(checkpoint: Path, target: Path, kind: str, tokenizer: dict[str, Any]) -> None:
    """The checkpoint as a gguf file; weights of matrices in ``kind`` (F32, F16, Q8_0, Q4_0).

    ``tokenizer``: the content of a tokenizer.json, byte-level BPE.
    """
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, tokenizer, config)
    quantized = gguf.GGMLQuantizationType[kind]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    source = Checkpoint(checkpoint)
    for name in source.names():
        values = np.asarray(source.read(name), np.float32)
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:
                values = _interleaved(values, count)
        target_name = names.get_name(name, try_suffixes=(".weight",))
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(target_name, values)
        else:
            writer.add_tensor(target_name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    import gguf

    names: list[str] = [name for name, _ in sorted(tokenizer["model"]["vocab"].items(), key=itemgetter(1))]
    special = {entry["content"] for entry in tokenizer["added_tokens"]}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([kinds.CONTROL if name in special else kinds.NORMAL for name in names])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _interleaved(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp rotates pairs that lie side by side, transformers the two halves of a head."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@contextmanager
def peer(
    name: str, version: str, wanted: Wanted, arguments: Sequence[str], environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """A program of the engine's Python, once it is ready; ``PORT`` in its arguments becomes a free port."""
    (port,) = free_ports(1)
    command = [wanted.python, *(str(port) if argument == PORT else argument for argument in arguments)]
    log = wanted.folder / "log"
    with running(command, log, os.environ | (environment or {})) as process:
        wait_until_ready(process, log, port, "/health", START_SECONDS)
        yield Server(name, version, port, 0, process.pid)


def installed(python: str, package: str) -> str:
    """The name and version of ``package`` in the environment of that Python.

    Raises:
        Missing: there is none.
    """
    program = f"from importlib.metadata import version; print(version({package!r}))"
    version = output([python, "-c", program]).strip() if Path(python).exists() else ""
    if not version:
        raise Missing(f"{package} is not installed in {Path(python).parents[1]}; `make bench-table-llm` does it")
    return f"{package} {version}"


ENGINES: dict[str, tuple[str, Start]] = {
    OURS: ("", partial(ours, Form.GQA)),
    OURS_PAGED: ("", partial(ours, Form.PAGED)),
    "llama.cpp": ("xllamacpp/bin/python", llama),
    "openvino-genai": ("openvino/bin/python", openvino),
    "vLLM": ("vllm/bin/python", vllm),
}
"""By name: the Python of its environment, below the directory of these, and how it is started."""
