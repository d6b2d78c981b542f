"""llama.cpp through llama-cpp-python's low-level functions: sequences of different lengths in one llama_decode."""

import json
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from executor_ours import LENGTH, THREADS
from executor_trace import Serve, in_flight
from repoagent_llm.builder.safetensors import Checkpoint

SEQUENCES = 16
PROMPT_TOKENS = 512


def write_gguf(checkpoint: Path, target: Path, kind: str, tokenizer: dict[str, Any] | None = None) -> None:
    """The checkpoint as a gguf file; weights of matrices in ``kind`` (F32, F16, Q8_0, Q4_0).

    ``tokenizer``: the content of a tokenizer.json, byte-level BPE; None: the file has no tokenizer.
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
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
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


@dataclass(slots=True)
class _Row:
    """A running sequence: how far it is, and what it still owes."""

    request: int
    position: int
    token: int
    left: int


class _Llama:
    """What llama.cpp's server does: every step carries one token of each running sequence, and new prompts."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._log = llama_cpp.llama_log_callback(lambda *_: None)  # llama.cpp keeps only its address
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = SEQUENCES * LENGTH, SEQUENCES
        options.n_batch = options.n_ubatch = PROMPT_TOKENS + SEQUENCES
        options.n_threads = options.n_threads_batch = THREADS
        self._context = llama_cpp.llama_init_from_model(model, options)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)
        self._greedy = llama_cpp.llama_sampler_init_greedy()
        self._waiting: list[tuple[int, list[int], int]] = []
        self._rows: dict[int, _Row] = {}

    def add(self, request: int, prompt: list[int], new_tokens: int) -> None:
        self._waiting.append((request, prompt, new_tokens))

    def step(self) -> list[tuple[int, int]]:
        self._batch.n_tokens = 0
        ends: dict[int, int] = {}
        for sequence, row in self._rows.items():
            ends[sequence] = self._append(row.token, row.position, sequence, last=True)
            row.position += 1
        room = PROMPT_TOKENS
        free = [sequence for sequence in range(SEQUENCES) if sequence not in self._rows]
        while self._waiting and free and len(self._waiting[0][1]) <= room:
            request, prompt, new_tokens = self._waiting.pop(0)
            sequence = free.pop(0)
            room -= len(prompt)
            for position, token in enumerate(prompt):
                ends[sequence] = self._append(token, position, sequence, last=position == len(prompt) - 1)
            self._rows[sequence] = _Row(request, len(prompt), -1, new_tokens)
        status = self._api.llama_decode(self._context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode says {status}")
        return [self._next(sequence, place) for sequence, place in ends.items()]

    def _append(self, token: int, position: int, sequence: int, *, last: bool) -> int:
        batch = self._batch
        place = batch.n_tokens
        batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, position, 1
        batch.seq_id[place][0], batch.logits[place] = sequence, last
        batch.n_tokens += 1
        return int(place)

    def _next(self, sequence: int, place: int) -> tuple[int, int]:
        row = self._rows[sequence]
        row.token = self._api.llama_sampler_sample(self._greedy, self._context, place)
        row.left -= 1
        if not row.left:
            self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            del self._rows[sequence]
        return row.request, row.token


def llamacpp(checkpoint: Path, kind: str = "F32") -> Serve:
    """llama.cpp with weights of a ``kind``."""
    path = checkpoint.parent / f"{kind}.gguf"
    if not path.exists():
        write_gguf(checkpoint, path, kind)
    return in_flight(_Llama(path))
