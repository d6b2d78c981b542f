"""Writes gguf/ beside this file: small GGUF files, and what llama.cpp and SentencePiece answer with them.

Run with gguf, xllamacpp, sentencepiece, tokenizers, tiktoken and onnx installed::

    python -m llm.tests.data.make_gguf

``gguf`` writes the files, with its own names of tensors and its own rounding; ``xllamacpp`` is llama.cpp, which
rounds to Q4_K and Q6_K, and loads them all. Weights are random, by the names of their tensors, so that
``tiny_checkpoint`` writes the same checkpoints anywhere. The text that the tokenizers were trained with stands below.
All of it is under this project's licence.
"""

import ctypes
import json
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import sentencepiece
import tiktoken
import tokenizers
import xllamacpp
from tiktoken_ext import openai_public

from llm.tests.tiny_checkpoints import tiny_values

PEERS = ("gguf", "xllamacpp", "sentencepiece", "tokenizers", "tiktoken")
FOLDER = Path(__file__).parent / "gguf"
TEXT = """
The baker of the village opens the shop at six in the morning. The bread is still warm, and the children who walk to the
school smell it from the bridge. "Good morning," the baker says, "the rolls are ready." It's 12 o'clock when the last
loaf is sold; there were 145 of them today, 3 more than yesterday. Then the baker closes the door and sleeps.
"""
QUESTIONS = [
    "The baker's bread",
    " two  spaces,   three",
    "12345 rolls\n\n\tare there",
    "Größe, 東京 and \U0001f956!",
    "",
    " ",
    "I'LL say <end> twice<end> and <note>it</note> once",
]
#: Cut into words alone.
CUT = [
    *filter(None, QUESTIONS),
    "HelloWorld getHTTPResponse iPhone XMLHttpRequest's McDonald'S THEY'LL they'd",
    "1234567 a1b22c333 3.14159 \u0663\u0664\u0665\u0666 \u2167\u00bd",
    "https://a.org/b//\r\n/c ?!/\n\n  \tindent  \r\n\r\n end   ",
    "\u00c9t\u00e9 \u01c5abc \u0416\u0438\u0437\u043d\u044c \u4e2d\u6587ABCdef \u02b0x\u02b0X",
    "\u0301T \u0903Z A\u0301b\u0301C \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u00a0x\u3000Y\u2028z \U0001f600\U0001f600! _under_Score $x=Y; 'Tis can\u2019t",
]
BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_theta": 10000.0},
}
LLAMA3 = {"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
YARN = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"rope_theta": 10000.0, "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 32}
LONG |= {"short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 2.0, 3.0, 5.0], "attention_factor": 1.1}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
WIDE = {"hidden_size": 256, "intermediate_size": 256}
#: By name of the file: architecture, type of its matrices, ``tokenizer.ggml.pre`` or "spm", changes of BASE.
FILES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "llama-f32": ("llama", "F32", "llama-bpe", {"model_type": "llama", "rope_parameters": LLAMA3}),
    "llama-q8_0": ("llama", "Q8_0", "spm", {"model_type": "llama", "tie_word_embeddings": False}),
    "llama-q4_0": ("llama", "Q4_0", "smollm", {"model_type": "llama", "tie_word_embeddings": False}),
    # Blocks of 256: those of shorter rows are Q8_0.
    "llama-q4_k": ("llama", "Q4_K", "llama-bpe", {"model_type": "llama", **WIDE}),
    "llama-q6_k": ("llama", "Q6_K", "llama-bpe", {"model_type": "llama", **WIDE}),
    "mixtral-q4_0": (
        "llama",
        "Q4_0",
        "spm",
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen2-f16": ("qwen2", "F16", "qwen2", {"model_type": "qwen2", "rope_parameters": YARN}),
    "qwen3-bf16": ("qwen3", "BF16", "qwen2", {"model_type": "qwen3"}),
    "qwen2moe-q8_0": (
        "qwen2moe",
        "Q8_0",
        "qwen2",
        {
            "model_type": "qwen2_moe",
            **MOE,
            "shared_expert_intermediate_size": 64,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3moe-q4_0": ("qwen3moe", "Q4_0", "gpt-2", {"model_type": "qwen3_moe", **MOE, "norm_topk_prob": True}),
    "gemma3-f16": (
        "gemma3",
        "F16",
        "spm",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,  # the sixth has no window
            "sliding_window": 4,
            "query_pre_attn_scalar": 16,
            "rope_local_base_freq": 10000.0,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        },
    ),
    "phi3-f16": (
        "phi3",
        "F16",
        "spm",
        {"model_type": "phi3", "tie_word_embeddings": False, "rope_parameters": LONG, "partial_rotary_factor": 0.5},
    ),
    "granite-f16": (
        "granite",
        "F16",
        "refact",
        {
            "model_type": "granite",
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.5,
            "logits_scaling": 8.0,
        },
    ),
    "smollm3-f16": ("smollm3", "F16", "smaug-bpe", {"model_type": "smollm3", "num_hidden_layers": 4}),
    "olmo2-f16": ("olmo2", "F16", "dbrx", {"model_type": "olmo2", "tie_word_embeddings": False}),
}
SPLIT = "qwen3-bf16"
"""Written in parts, too."""
PROMPT = [7, 40, 41, 100, 260, 33, 9, 9, 88, 17, 5, 61]
Floats = npt.NDArray[np.float32]


def shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """The tensors of a checkpoint of that config.json, as transformers saves it."""
    kind, hidden = config["model_type"], config["hidden_size"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [config["vocab_size"], hidden]
    for number in range(config["num_hidden_layers"]):
        stem = f"model.layers.{number}."
        found |= {f"{stem}{name}": shape for name, shape in _layer(kind, hidden).items()}
        found |= {f"{stem}{name}": shape for name, shape in _mlp(kind, hidden, config["intermediate_size"]).items()}
    return found


def _layer(kind: str, hidden: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    sizes = {"qkv": 64} if kind == "phi3" else {"q": 32, "k": 16, "v": 16}
    for name, size in sizes.items():
        found[f"self_attn.{name}_proj.weight"] = [size, hidden]
        if kind in ("qwen2", "qwen2_moe"):
            found[f"self_attn.{name}_proj.bias"] = [size]
        if kind in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2") and name != "v":
            found[f"self_attn.{name}_norm.weight"] = [size if kind == "olmo2" else 16]
    found["self_attn.o_proj.weight"] = [hidden, 32]
    norms = ["post_attention", "post_feedforward"] if kind == "olmo2" else ["input", "post_attention"]
    norms += ["pre_feedforward", "post_feedforward"] if kind == "gemma3_text" else []
    return found | {f"{name}_layernorm.weight": [hidden] for name in norms}


def _mlp(kind: str, hidden: int, inner: int) -> dict[str, list[int]]:
    parts = {"gate_proj": [inner, hidden], "up_proj": [inner, hidden], "down_proj": [hidden, inner]}
    box, names = "mlp.", {name: name for name in parts}
    if kind == "mixtral":
        box, names = "block_sparse_moe.", {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    elif kind == "phi3":
        return {"mlp.gate_up_proj.weight": [2 * inner, hidden], "mlp.down_proj.weight": [hidden, inner]}
    elif not kind.endswith("moe"):
        return {f"mlp.{name}.weight": shape for name, shape in parts.items()}
    found = {f"{box}gate.weight": [4, hidden]}
    for number in range(4):
        found |= {f"{box}experts.{number}.{name}.weight": parts[part] for name, part in names.items()}
    if kind == "qwen2_moe":
        shared = {"gate_proj": [64, hidden], "up_proj": [64, hidden], "down_proj": [hidden, 64]}
        found |= {f"{box}shared_expert.{name}.weight": shape for name, shape in shared.items()}
        found[f"{box}shared_expert_gate.weight"] = [1, hidden]
    return found


def write(name: str, config: dict[str, Any], tokens: Any, tensors: dict[str, Floats], most: int = 0) -> Path:
    """The GGUF file; ``most`` tensors in each of several."""
    architecture, kind, _, _ = FILES[name]
    path = FOLDER / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=most)
    _add_keys(writer, config)
    tokens(writer)
    if config["rope_parameters"].get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config["rope_parameters"]))
    for length in ("long", "short") if architecture == "phi3" else ():
        factors = np.array(config["rope_parameters"][f"{length}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{length}.weight", factors)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for source, values in merged(tensors).items():
        heads = {"q_proj": 2, "k_proj": 1}.get(source.split(".")[-2], 0)
        if architecture in ("llama", "granite", "smollm3") and heads:  # as convert_hf_to_gguf.py does
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if architecture == "gemma3" and source.endswith("norm.weight"):
            values = values + 1
        target = names.get_name(source, try_suffixes=(".weight", ".bias"))
        assert target is not None, source
        if values.ndim == 1 or kind == "F32" or "ffn_gate_inp" in target:
            writer.add_tensor(target, np.squeeze(values) if "shexp" in target else values)
        else:
            writer.add_tensor(target, *_rounded(np.ascontiguousarray(values), gguf.GGMLQuantizationType[kind]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rounded(values: Floats, kind: Any) -> tuple[npt.NDArray[Any], tuple[int, ...] | None, Any]:
    """The arguments of ``add_tensor``: rounded by llama.cpp itself in the types that ``gguf`` does not write."""
    if not kind.name.endswith("_K"):
        return gguf.quants.quantize(values, kind), None, kind
    if values.shape[-1] % 256:
        return _rounded(values, gguf.GGMLQuantizationType.Q8_0)
    rows, length = values.size // values.shape[-1], values.shape[-1]
    found = np.zeros(gguf.quants.quant_shape_to_byte_shape(values.shape, kind), np.uint8)
    quantize = ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_quantize_chunk
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    quantize.restype = ctypes.c_size_t
    assert quantize(kind, values.ctypes.data, found.ctypes.data, 0, rows, length, None) == found.nbytes
    return found, None, kind


def _add_keys(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_dimension_count(int(16 * config.get("partial_rotary_factor", 1)))
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"].endswith("moe") or config["model_type"] == "mixtral":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
    if config["model_type"].endswith("moe"):
        writer.add_expert_feed_forward_length(32)
    if config["model_type"] == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(64)


def merged(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """Experts one behind the other, as convert_hf_to_gguf.py does."""
    found = {name: values for name, values in tensors.items() if ".experts." not in name}
    apart = {name for name in tensors if ".experts.0." in name}
    for name in sorted(apart):
        stacked = np.stack([tensors[name.replace(".experts.0.", f".experts.{number}.")] for number in range(4)])
        found[name.replace(".experts.0.", ".experts.")] = stacked
    return found


def llama3_factors(rope: dict[str, Any]) -> Floats:
    """As convert_hf_to_gguf.py writes them."""
    found = []
    for speed in 1.0 / rope["rope_theta"] ** (np.arange(0, 16, 2) / 16):
        wave, original = 2 * np.pi / speed, rope["original_max_position_embeddings"]
        low, high = original / rope["low_freq_factor"], original / rope["high_freq_factor"]
        smooth = (original / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        factor = 1 if wave < high else rope["factor"] if wave > low else 1 / ((1 - smooth) / rope["factor"] + smooth)
        found.append(factor)
    return np.array(found, np.float32)


SPECIAL = ["<unk>", "<s>", "</s>", "<end>", "<note>", "</note>"]
KINDS = [2, 3, 3, 3, 4, 4]


def byte_level(pre: str) -> tuple[int, Any]:
    """A small tokenizer of pairs of bytes."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, special_tokens=SPECIAL, initial_alphabet=alphabet)
    inner.train_from_iterator([TEXT], trainer)
    model = json.loads(inner.to_str())["model"]
    names = sorted(model["vocab"], key=model["vocab"].get)

    def add(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(names)
        writer.add_token_types(KINDS + [1] * (len(names) - len(KINDS)))
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(3)
        writer.add_chat_template("{{ bos_token }}{% for message in messages %}{{ message.content }}<end>{% endfor %}")

    return len(names), add


def sentence_piece(place: Path) -> tuple[int, Any, Any]:
    """A small one of SentencePiece, with bytes for what it lacks."""
    (place / "text").write_text(TEXT.replace("\n", " "))
    options = {"model_type": "bpe", "vocab_size": 330, "byte_fallback": True, "normalization_rule_name": "identity"}
    options |= {"remove_extra_whitespaces": False, "control_symbols": "<end>", "hard_vocab_limit": False}
    options |= {"user_defined_symbols": ["<note>", "</note>"], "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(place / "text"), model_prefix=str(place / "m"), **options)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(place / "m.model"))
    size = pieces.get_piece_size()

    def kind(number: int) -> int:
        if pieces.is_unknown(number):
            return 2
        if pieces.is_control(number):
            return 3
        return 6 if pieces.is_byte(number) else 4 if "note>" in pieces.id_to_piece(number) else 1

    def add(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([pieces.id_to_piece(number) for number in range(size)])
        writer.add_token_scores([pieces.get_score(number) for number in range(size)])
        writer.add_token_types([kind(number) for number in range(size)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    return size, add, pieces


def ask_llama(path: Path) -> dict[str, Any]:
    """Tokens of texts, and log-probabilities of the token behind the prompt."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup, params.port = 64, 1, False, 18433
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)

    def post(route: str, **body: Any) -> Any:
        request = urllib.request.Request(server.listening_address + route, json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    asked = {"add_special": True, "parse_special": True}
    tokens = [post("/tokenize", content=question, **asked)["tokens"] for question in QUESTIONS]
    prompt = PROMPT
    found: dict[str, Any] = {}
    while not found.get("completion_probabilities"):  # an end token has none
        prompt = prompt[1:] + prompt[:1]
        found = post("/completion", prompt=prompt, n_predict=1, n_probs=400, temperature=0.0, cache_prompt=False)
    (one,) = found["completion_probabilities"]
    likely = sorted((entry["id"], entry["logprob"]) for entry in one["top_logprobs"])
    return {"tokens": tokens, "prompt": prompt, "log_probs": [round(value, 6) for _, value in likely]}


def blocks(name: str) -> dict[str, str]:
    """Random bytes, and what they stand for by ``gguf``, which writes no Q4_K, Q5_K and Q6_K."""
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(3).integers(0, 256, (3, size), np.uint8)
    places = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(name, (0,))
    for place in places:  # of scales, which must be finite
        raw[:, place : place + 2] = np.array([[0.01], [-0.02], [3.0]], np.float16).view(np.uint8)
    return {"raw": raw.tobytes().hex(), "floats": gguf.quants.dequantize(raw, kind).astype("<f4").tobytes().hex()}


def words() -> dict[str, list[str]]:
    """How tiktoken cuts texts into words by the expression of o200k_base.

    Its tokens are whole words, as each part of the text is a token, and longer ones are merged last.
    """
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}  # that would be downloaded
    pattern, found = openai_public.o200k_base()["pat_str"], {}
    for text in CUT:
        data = text.encode()
        parts = {data[i : j + 1] for i in range(len(data)) for j in range(i, len(data))}
        parts |= {bytes([value]) for value in range(256)}
        ranks = {part: rank for rank, part in enumerate(sorted(parts, key=lambda part: (len(part), part)))}
        coding = tiktoken.Encoding("words", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        found[text] = [coding.decode([token]) for token in coding.encode_ordinary(text)]
    return found


def main() -> None:
    """Write all files, then what others answer with them."""
    FOLDER.mkdir(exist_ok=True)
    recorded: dict[str, Any] = {"questions": QUESTIONS, "files": {}}
    recorded["versions"] = {name: version(name) for name in PEERS}
    recorded["words"] = {"gpt-4o": words()}
    recorded["blocks"] = {kind: blocks(kind) for kind in ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")}
    with tempfile.TemporaryDirectory() as place:
        for name, (_, _, pre, changes) in FILES.items():
            pieces = None
            if pre == "spm":
                size, tokens, pieces = sentence_piece(Path(place))
            else:
                size, tokens = byte_level(pre)
            config = {**BASE, "vocab_size": size, **changes}
            tensors = shapes(config)
            values = {key: tiny_values(key, shape, config) for key, shape in tensors.items()}
            if name == SPLIT:
                write(name, config, tokens, values, most=5)
            path = write(name, config, tokens, values)
            entry = {"config": config, "tensors": tensors, **ask_llama(path)}
            if pieces is not None:
                plain = [text for text in QUESTIONS if "<" not in text]
                entry["pieces"] = {text: [1, *pieces.encode(text)] for text in plain}
            recorded["files"][name] = entry
    (FOLDER / "recorded.json").write_text(json.dumps(recorded, indent=None) + "\n")


if __name__ == "__main__":
    main()
