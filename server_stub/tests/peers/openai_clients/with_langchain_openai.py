"""LangChain over chats and over responses."""

from functools import reduce
from operator import add

from asked import MODEL, ORDER, QUESTION, URL, Villager, report, visit
from langchain_openai import ChatOpenAI

found = {"texts": [], "tokens": [], "visits": [], "villagers": []}
for responses in (False, True):
    model = ChatOpenAI(
        base_url=URL, model=MODEL, api_key="any", temperature=0, stream_usage=True, use_responses_api=responses
    )
    for answer in (model.invoke(QUESTION), reduce(add, model.stream(QUESTION))):
        found["texts"].append(answer.text)
        found["tokens"].append(answer.usage_metadata["total_tokens"])
    calling = model.bind_tools([visit], tool_choice="visit")
    for answer in (calling.invoke(QUESTION), reduce(add, calling.stream(QUESTION))):
        found["visits"].append(answer.tool_calls[0]["args"])
    for method in ("json_schema", "function_calling"):
        found["villagers"].append(model.with_structured_output(Villager, method=method).invoke(ORDER).model_dump())
report(**found)
