"""The official client over chats and over responses, whole and streamed."""

import json

import openai
from asked import MODEL, ORDER, QUESTION, URL, Villager, Visit, report

client = openai.OpenAI(base_url=URL, api_key="any", max_retries=0)
chats, responses = client.chat.completions, client.responses
asked = {"model": MODEL, "temperature": 0}
question, order = ([{"role": "user", "content": text}] for text in (QUESTION, ORDER))
calling = {"tools": [openai.pydantic_function_tool(Visit)], "tool_choice": "required"}

whole = [chats.create(messages=question, **asked), responses.create(input=QUESTION, **asked)]
with chats.stream(messages=question, stream_options={"include_usage": True}, **asked) as stream:
    streamed = [stream.get_final_completion()]
with responses.stream(input=QUESTION, **asked) as stream:
    streamed.append(stream.get_final_response())
calls = [chats.create(messages=question, **calling, **asked)]
with chats.stream(messages=question, **calling, **asked) as stream:
    calls.append(stream.get_final_completion())
chat = chats.parse(messages=order, response_format=Villager, **asked).choices[0].message.parsed
response = responses.parse(input=ORDER, text_format=Villager, **asked).output_parsed
report(
    texts=[
        text for chat, response in (whole, streamed) for text in (chat.choices[0].message.content, response.output_text)
    ],
    tokens=[each.usage.total_tokens for each in (*whole, *streamed)],
    finish=[chat.choices[0].finish_reason for chat, _ in (whole, streamed)],
    visits=[json.loads(call.choices[0].message.tool_calls[0].function.arguments) for call in calls],
    villagers=[found.model_dump() for found in (chat, response)],
)
