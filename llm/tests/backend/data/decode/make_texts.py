"""Writes texts.json: what transformers decodes of random tokens with the tokenizers beside this file.

Run it in an environment of its own with transformers, which this project does not install. The tokenizers are those of
``llm/tests/backend/tiny.py``, saved.
"""

import json
import random
from pathlib import Path

import transformers

HERE = Path(__file__).parent
NAMES = ("byte_level", "byte_fallback")
SEQUENCES = 150
LONGEST = 40


def main() -> None:
    found = []
    for name in NAMES:
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(HERE / f"{name}.json"))
        chance = random.Random(1)
        for _ in range(SEQUENCES):
            tokens = [chance.randrange(len(tokenizer)) for _ in range(chance.randrange(1, LONGEST))]
            text = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            found.append({"tokenizer": name, "tokens": tokens, "text": text})
        for sentence in ("Zürich 日本語 🙂🙃 \u0000", "  a b", "é" * 20, "\n\n\t x"):
            tokens = tokenizer.encode(sentence, add_special_tokens=False)
            text = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            found.append({"tokenizer": name, "tokens": tokens, "text": text})
    document = {"made_with": f"transformers {transformers.__version__}", "texts": found}
    (HERE / "texts.json").write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
