"""Asks the chat model questions that were kept from its training, and prints the share of right answers of each kind.

Needs the extra ``llm``, and no PyTorch. Decoding is greedy. An answer is right if it is what was expected, word for
word.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from elmbrook.conversations import follow_up, reading, stranger
from elmbrook.questions import held_out, questions

from repoagent.server import Model, ModelControlMode, Server

REPOSITORY: Final = Path(__file__).parent / "repository"
DRAWN: Final = 60
"""Questions of each kind that is drawn at random, as there is no end of them."""
AT_ONCE: Final = 64


class Exam(NamedTuple):
    """One thing to ask: messages, and the answer that is right."""

    kind: str
    messages: list[dict[str, str]]
    answer: str


def exams() -> Iterator[Exam]:
    """Questions that training leaves out; in other words, or about other names, it has seen the like."""
    for question in questions():
        if held_out(question.text):
            yield Exam(question.kind, [_user(question.text)], question.answer)
    draw = random.Random(2)
    for made in (reading, stranger):
        drawn = (made(draw) for _ in range(100 * DRAWN))
        left_out = {question.text: question for question in drawn if held_out(question.text)}
        for question in list(left_out.values())[:DRAWN]:
            yield Exam(question.kind, [_user(question.text)], question.answer)
    pairs = (follow_up(draw) for _ in range(100 * DRAWN))
    for first, second in [pair for pair in pairs if held_out(f"{pair[0].text}\n{pair[1].text}")][:DRAWN]:
        before = [_user(first.text), {"role": "assistant", "content": first.answer}]
        yield Exam(second.kind, [*before, _user(second.text)], second.answer)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answers(model: Model, asked: list[Exam]) -> Iterator[str]:
    """What the model answers, greedily; requests share its steps."""
    numbers = {"max_tokens": np.array([96], np.int32), "top_k": np.array([1], np.int32)}
    for start in range(0, len(asked), AT_ONCE):
        some = asked[start : start + AT_ONCE]
        sent = [model.infer(inputs={"messages": [json.dumps(exam.messages)], **numbers}) for exam in some]
        for one in sent:
            yield "".join(str(response.outputs["text_output"].to_string_array()[0]) for response in one)


def judge(model: Model) -> dict[str, tuple[int, int]]:
    """For each kind of question, how many answers are right, and how many there are."""
    asked = list(exams())
    shares: dict[str, tuple[int, int]] = {}
    for exam, answer in zip(asked, answers(model, asked), strict=True):
        right, total = shares.get(exam.kind, (0, 0))
        shares[exam.kind] = right + (answer == exam.answer), total + 1
    return shares


def main() -> None:
    """Print the shares."""
    with Server(model_repository=str(REPOSITORY), model_control_mode=ModelControlMode.EXPLICIT) as server:
        shares = judge(server.load("elmbrook"))
    for kind, (right, total) in sorted(shares.items()):
        print(f"{kind:12} {right:4} of {total:4}  {100 * right / total:5.1f} %")
    right, total = (sum(numbers) for numbers in zip(*shares.values(), strict=True))
    print(f"{'all':12} {right:4} of {total:4}  {100 * right / total:5.1f} %")


if __name__ == "__main__":
    main()
