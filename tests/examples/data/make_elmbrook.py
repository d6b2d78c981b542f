"""What transformers answers with the checkpoint of examples/chat, greedily: writes ``elmbrook.json`` beside this file.

Needs torch and transformers: ``.venvs/train/bin/python tests/examples/data/make_elmbrook.py``.
"""

import json
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE: Final = Path(__file__).resolve().parent
CHECKPOINT: Final = HERE.parents[2] / "examples" / "chat" / "repository" / "elmbrook" / "1"
ASKED: Final = (
    ["Who is the baker?"],
    ["Tell me about Kira."],
    ["Tell me a story about an owl."],
    ["Write a short story about a bear."],
    ["Describe Olga as JSON with name, job, pet."],
    ["What is the capital of France?"],
    ["Hello!", "What can you do?"],
    ["Where does Bruno live?", "And Mila?", "What is her hobby?"],
    ["Tim has a red ball. Ida has a blue kite. What colour is the kite?"],
    ["Where does the naïve 狐 live?"],
)
"""What the user writes, turn by turn; the model's answers come between."""


def main() -> None:
    """Write each conversation, and the last prompt as the template renders it."""
    words = AutoTokenizer.from_pretrained(CHECKPOINT)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    conversations = []
    for wishes in ASKED:
        messages: list[dict[str, str]] = []
        for wish in wishes:
            messages.append({"role": "user", "content": wish})
            prompt = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            tokens = words(prompt, return_tensors="pt", add_special_tokens=False).input_ids
            found = model.generate(tokens, max_new_tokens=200, do_sample=False)
            text = words.decode(found[0, tokens.shape[1] :], skip_special_tokens=True)
            messages.append({"role": "assistant", "content": text})
        conversations.append({"prompt": prompt, "messages": messages})
    text = json.dumps(conversations, indent=1, ensure_ascii=False)
    (HERE / "elmbrook.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
