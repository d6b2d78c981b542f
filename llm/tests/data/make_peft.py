"""Writes peft/ beside this file: small adapters that PEFT saved, and what its models say with them.

Run with torch (CPU), transformers and peft installed::

    python -m llm.tests.data.make_peft

The models are ``synthetic_checkpoint(folder, kind, **SHAPES[kind])``, as in make_oracle.py.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.data.make_oracle import END_ID, PROMPTS, SHAPES

ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-all": (
        "llama",
        {
            "r": 2,
            "lora_alpha": 12,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            "rank_pattern": {"q_proj": 3},
            "alpha_pattern": {"layers.1.mlp.down_proj": 20},
        },
    ),
    "qwen2-queries": ("qwen2", {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}),
    "gpt2-rs": (
        "gpt2",
        {
            "r": 2,
            "lora_alpha": 8,
            "use_rslora": True,
            "fan_in_fan_out": True,
            "target_modules": ["c_attn", "c_proj", "c_fc"],
        },
    ),
}
NEW_TOKENS = 12


def describe(model: Any) -> list[dict[str, Any]]:
    """The last logits and the greedy tokens of each prompt, up to the end token."""
    entries = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1]
            found = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=END_ID,
                pad_token_id=0,
            )
        tokens = found[0, len(prompt) :].tolist()
        tokens = tokens[: tokens.index(END_ID)] if END_ID in tokens else tokens
        entries.append({"prompt": prompt, "logits": [round(value, 5) for value in logits.tolist()], "tokens": tokens})
    return entries


def _forget_path(path: Path, kind: str) -> None:
    """The file names the temporary folder of the model."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = f"synthetic-{kind}"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Write the folder."""
    torch.manual_seed(0)
    target = Path(__file__).with_name("peft")
    shutil.rmtree(target, ignore_errors=True)
    body: dict[str, Any] = {"peft": peft.__version__, "transformers": transformers.__version__, "models": {}}
    with tempfile.TemporaryDirectory() as place:
        for name, (kind, settings) in ADAPTERS.items():
            folder = synthetic_checkpoint(Path(place) / name, kind, **SHAPES[kind])
            base = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            )
            config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
            model = peft.get_peft_model(base, config).eval()
            model.save_pretrained(target / name)
            (target / name / "README.md").unlink(missing_ok=True)
            _forget_path(target / name / "adapter_config.json", kind)
            body["models"][name] = {"kind": kind, "answers": describe(model)}
    text = json.dumps(body, separators=(",", ":"))
    (target / "answers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
