"""Writes architectures.json beside this file: what transformers computes for a tiny checkpoint of each architecture.

Run with torch (CPU) and transformers installed::

    python -m llm.tests.data.make_architectures

Weights are random, by the names of their tensors, so that ``tiny_checkpoint`` writes the same files anywhere.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from llm.tests.tiny_checkpoints import TEXT, read_shapes, tiny_checkpoint

_BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **values}}


_PHI4 = {"rope_parameters": {**_LONG, "partial_rotary_factor": 0.75}, "original_max_position_embeddings": 32}
#: By name: model_type, what its config.json has beside _BASE, and how many tokens are served.
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "gemma3": (
        "gemma3_text",
        {
            "tie_word_embeddings": True,
            "head_dim": 24,
            "query_pre_attn_scalar": 20,
            "sliding_window": 16,
            "layer_types": _LAYERS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        80,
    ),
    "qwen3-windows": (
        "qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        80,
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
        80,
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 80,
            "decoder_sparse_step": 2,
        },
        80,
    ),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 16}, 80),
    "gpt_oss": (
        "gpt_oss",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "layer_types": _LAYERS,
            "rope_parameters": {**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
        80,
    ),
    "phi3": ("phi3", {"sliding_window": 16}, 80),
    "phi4-mini-short": ("phi3", _PHI4, 32),
    "phi4-mini-long": ("phi3", _PHI4, 80),
    "olmo2": ("olmo2", {}, 80),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 0.5,
        },
        80,
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}, 80),
    "linear": ("llama", _rope("linear", factor=4.0), 80),
    "yarn": ("llama", {"rope_parameters": _YARN}, 80),
    "dynamic-short": ("llama", {"max_position_embeddings": 32, **_rope("dynamic", factor=4.0)}, 32),
    "dynamic-long": ("llama", {"max_position_embeddings": 32, **_rope("dynamic", factor=4.0)}, 80),
}
PROMPT, NEW_TOKENS, BEAMS, BEAM_TOKENS = 40, 16, 3, 8


def generate(model: Any, **options: Any) -> Any:
    """What follows the first PROMPT tokens, with the log-probabilities that the model gave."""
    ids = torch.tensor([TEXT[:PROMPT]])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        pad_token_id=0,
        eos_token_id=-1,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        **options,
    )


def describe(folder: Path, kind: str, shape: dict[str, Any], length: int) -> dict[str, Any]:
    """Everything stored for one variant."""
    config = transformers.AutoConfig.for_model(kind, **{**_BASE, **shape})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "shapes")
    written = {"architectures": ["X"], **json.loads((folder / "shapes" / "config.json").read_text())}
    entry: dict[str, Any] = {"config": written, "tensors": read_shapes(folder / "shapes" / "model.safetensors")}
    checkpoint = tiny_checkpoint(folder / "checkpoint", entry)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits = model(torch.tensor([TEXT[:length]])).logits[0]
    entry["length"] = length
    entry["rows"] = [0, length // 2, length - 1]
    entry["logits"] = [[round(value, 6) for value in row] for row in logits[entry["rows"]].tolist()]
    if not {"longrope", "dynamic"} & {str(shape.get("rope_parameters", {}).get("rope_type"))}:
        found = generate(model, max_new_tokens=NEW_TOKENS)
        tokens = found.sequences[0, PROMPT:].tolist()
        chosen = [row[0].log_softmax(-1)[token].item() for row, token in zip(found.logits, tokens, strict=True)]
        entry["greedy"] = {"tokens": tokens, "log_probs": [round(value, 5) for value in chosen]}
        found = generate(
            model, max_new_tokens=BEAM_TOKENS, num_beams=BEAMS, num_return_sequences=BEAMS, length_penalty=0.0
        )
        entry["beams"] = {
            "tokens": found.sequences[:, PROMPT:].tolist(),
            "scores": [round(score, 5) for score in found.sequences_scores.tolist()],
        }
    return entry


def main() -> None:
    """Write the file."""
    torch.set_num_threads(1)
    body: dict[str, Any] = {
        "transformers": f"{transformers.__version__} (Apache-2.0)",
        "torch": f"{torch.__version__} (BSD-3-Clause)",
        "prompt": PROMPT,
        "variants": {},
    }
    with tempfile.TemporaryDirectory() as place:
        for name, (kind, shape, length) in VARIANTS.items():
            body["variants"][name] = describe(Path(place, name), kind, shape, length)
    path = Path(__file__).with_name("architectures.json")
    path.write_text(json.dumps(body, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
