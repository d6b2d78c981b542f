"""Writes genai/ beside this file: a decoder folder by onnxruntime-genai's own builder, and its own greedy tokens.

Run with torch (CPU), transformers, onnx-ir and onnxruntime-genai installed::

    python -m llm.tests.data.make_genai
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime_genai
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from examples.executor.synthetic import synthetic_checkpoint

PROMPTS = [[5, 9, 17], [3, 3, 40, 41, 8, 22, 30, 11, 4, 27, 31], [33]]
VOCAB = 64


def greedy(folder: Path, prompt: list[int]) -> list[int]:
    """Twelve tokens of onnxruntime-genai's Generator."""
    model = onnxruntime_genai.Model(str(folder))
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + 12, do_sample=False)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :]


def main() -> None:
    """Write the folder."""
    target = Path(__file__).with_name("genai")
    with tempfile.TemporaryDirectory() as place:
        shape: dict[str, Any] = {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
        source = synthetic_checkpoint(Path(place) / "source", intermediate_size=48, **shape)
        words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
        PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", f"{place}/out"]
        command += ["-p", "int4", "-e", "cpu", "-c", f"{place}/cache", "--extra_options", "hf_token=false"]
        subprocess.run(command, check=True)
        target.mkdir(exist_ok=True)
        for name in ("model.onnx", "model.onnx.data", "genai_config.json"):
            shutil.copy(Path(place) / "out" / name, target / name)
        found = [{"prompt": prompt, "tokens": greedy(Path(place) / "out", prompt)} for prompt in PROMPTS]
    (target / "tokens.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
