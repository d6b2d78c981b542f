"""Writes oracle.json beside this file: what transformers computes for fixed small models.

Run with torch (CPU) and transformers installed::

    python -m llm.tests.data.make_oracle

The models are ``synthetic_checkpoint(folder, kind, **SHAPES[kind])``; a checksum of their files is stored too.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from examples.executor.synthetic import synthetic_checkpoint

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral": {"sliding_window": 8},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "gpt2": {},
}
PROMPTS = [[5, 9, 17], [3, 3, 60, 41, 8, 22, 90, 11, 4, 77, 31], [50], [64, 2, 33, 12, 12, 12]]
BEAMS: list[dict[str, Any]] = [
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
    {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 3, "length_penalty": 2.0, "early_stopping": "never"},
]
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[7], [9, 17]]},
    {"min_new_tokens": 12},
]
DRAWS: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_k": 12},
    {"temperature": 1.4, "top_k": 0, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.7},
    {"temperature": 1.3, "top_k": 0, "min_p": 0.03},
    {"temperature": 1.1, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.4},
]
NEW_TOKENS = 20
END_ID = 2


def generate(model: Any, prompt: list[int], **options: Any) -> Any:
    """Run ``model.generate`` on one prompt."""
    ids = torch.tensor([prompt])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def distribution(model: Any, prompt: list[int], **options: Any) -> dict[str, float]:
    """From which the next token is drawn: the probability of each token that may come."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=1,
        do_sample=True,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    probabilities = found.scores[0][0].softmax(-1).tolist()
    return {str(token): round(value, 6) for token, value in enumerate(probabilities) if value > 0}


def trim(tokens: list[int]) -> list[int]:
    """Generated tokens up to the end token, which is left out."""
    return tokens[: tokens.index(END_ID)] if END_ID in tokens else tokens


def describe(model: Any) -> dict[str, Any]:
    """Everything stored for one model."""
    entry: dict[str, Any] = {"logits": [], "greedy": [], "penalised": [], "beams": [], "drawn": []}
    for prompt in PROMPTS:
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0]
        entry["logits"].append([[round(value, 5) for value in row] for row in logits[[0, -1]].tolist()])
        found = generate(model, prompt, eos_token_id=END_ID)
        entry["greedy"].append(trim(found.sequences[0, len(prompt) :].tolist()))
        for options in PENALTIES:
            found = generate(model, prompt, eos_token_id=END_ID, **options)
            tokens = trim(found.sequences[0, len(prompt) :].tolist())
            entry["penalised"].append({"prompt": prompt, "options": options, "tokens": tokens})
        for options in DRAWS:
            chances = distribution(model, prompt, **options)
            entry["drawn"].append({"prompt": prompt, "options": options, "probabilities": chances})
        for options in BEAMS:
            found = generate(model, prompt, eos_token_id=END_ID, num_return_sequences=options["num_beams"], **options)
            entry["beams"].append(
                {
                    "prompt": prompt,
                    "options": options,
                    "tokens": [trim(row.tolist()) for row in found.sequences[:, len(prompt) :]],
                    "scores": [round(score, 5) for score in found.sequences_scores.tolist()],
                }
            )
    return entry


def main() -> None:
    """Write the file."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    body: dict[str, Any] = {"transformers": transformers.__version__, "torch": torch.__version__, "models": {}}
    with tempfile.TemporaryDirectory() as place:
        for kind, shape in SHAPES.items():
            folder = synthetic_checkpoint(Path(place) / kind, kind, **shape)
            digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
            body["models"][kind] = {"shape": shape, "sha256": digest, **describe(model)}
    body["prompts"], body["new_tokens"], body["end_id"] = PROMPTS, NEW_TOKENS, END_ID
    path = Path(__file__).with_name("oracle.json")
    path.write_text(json.dumps(body, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
