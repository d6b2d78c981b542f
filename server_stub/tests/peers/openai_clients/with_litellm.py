"""LiteLLM over chats, over texts and over responses."""

import json

import litellm
from asked import MODEL, ORDER, QUESTION, URL, Villager, Visit, report

asked = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "any", "temperature": 0, "num_retries": 0}
question, order = ([{"role": "user", "content": text}] for text in (QUESTION, ORDER))
tool = {"type": "function", "function": {"name": "visit", "parameters": Visit.model_json_schema()}}
calling = {"tools": [tool], "tool_choice": "required"}


def chat(messages, **more):
    """The answer whole, and the answer put together from its stream."""
    pieces = litellm.completion(messages=messages, stream=True, stream_options={"include_usage": True}, **asked, **more)
    return litellm.completion(messages=messages, **asked, **more), litellm.stream_chunk_builder(list(pieces))


answers, calls, objects = chat(question), chat(question, **calling), chat(order, response_format=Villager)
response = litellm.responses(input=QUESTION, **asked)
*_, last = litellm.responses(input=QUESTION, stream=True, **asked)
report(
    texts=[each.choices[0].message.content for each in answers]
    + [each.output[-1].content[0].text for each in (response, last.response)],
    tokens=[each.usage.total_tokens for each in (*answers, response, last.response)],
    finish=[each.choices[0].finish_reason for each in answers],
    visits=[json.loads(each.choices[0].message.tool_calls[0].function.arguments) for each in calls],
    villagers=[json.loads(each.choices[0].message.content) for each in objects],
)
