"""Writes pairs.json: what transformers renders with the templates beside this file.

Run it in an environment of its own with transformers, which this project does not install.
"""

import datetime as dt
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import transformers
from tokenizers import Tokenizer, models
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TODAY = dt.datetime(2001, 2, 3, 4, 5, 6)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather of a place, "now" & later <b>',
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Zürich"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
USER = {"role": "user", "content": "Hello! 'quoted' \"text\" <tag> & ümläut 日本語 🙂"}
SYSTEM = {"role": "system", "content": "You are short.  \n"}
ANSWER = {"role": "assistant", "content": "  Hi.\nWhat else?  "}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcDEF123", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich"}}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcDEF123", "name": "get_weather", "content": '{"sky": "clear"}'}
AGAIN = {"role": "user", "content": "And tomorrow?"}
THOUGHTFUL = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}

CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one": ([USER], {}),
    "with a system text": ([SYSTEM, USER], {}),
    "several turns": ([USER, ANSWER, AGAIN], {}),
    "no prompt": ([USER, ANSWER], {"add_generation_prompt": False}),
    "to be continued": ([USER, {"role": "assistant", "content": "Sure: "}], {"continue_final_message": True}),
    "tools": ([SYSTEM, USER], {"tools": [WEATHER]}),
    "a call without a text": ([USER, {**CALL, "content": None}, RESULT], {"tools": [WEATHER]}),
    "a call and its result": ([USER, CALL, RESULT], {"tools": [WEATHER]}),
    "after a call": ([USER, CALL, RESULT, ANSWER, AGAIN], {"tools": [WEATHER]}),
    "thoughts": ([USER, THOUGHTFUL, AGAIN], {}),
    "no thinking": ([SYSTEM, USER], {"enable_thinking": False, "reasoning_effort": "low"}),
    "a null": ([{**USER, "name": None}], {}),
    "roles that do not alternate": ([USER, AGAIN], {}),
}


class Today(dt.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return TODAY


def rendered(template: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    """The text, or None where there is none."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    tokenizer.chat_template = template
    prompt = {"add_generation_prompt": not options.get("continue_final_message", False)}
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **{**prompt, **options}))
    except Exception:
        return None


def main() -> None:
    pairs = []
    with patch.object(chat_template_utils, "datetime", Today):
        for file in sorted(HERE.glob("*.jinja")):
            template = file.read_text(encoding="utf-8")
            for case, (messages, options) in CASES.items():
                text = rendered(template, messages, options)
                pairs.append({"template": file.name, "case": case, "text": text})
    cases = {name: {"messages": messages, "options": options} for name, (messages, options) in CASES.items()}
    document = {
        "made_with": f"transformers {transformers.__version__}",
        "special": SPECIAL,
        "today": TODAY.isoformat(),
        "cases": cases,
        "pairs": pairs,
    }
    (HERE / "pairs.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
