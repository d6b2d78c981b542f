"""pydantic-ai over chats and over responses: objects by a tool and by a schema."""

import asyncio

from asked import MODEL, ORDER, QUESTION, URL, Villager, report
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main() -> None:
    found = {"texts": [], "tokens": [], "villagers": []}
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL, provider=OpenAIProvider(base_url=URL, api_key="any"), settings={"temperature": 0})
        whole = await Agent(model).run(QUESTION)
        async with Agent(model).run_stream(QUESTION) as streamed:
            pieces = [piece async for piece in streamed.stream_text(delta=True)]
        found["texts"] += [whole.output, "".join(pieces)]
        found["tokens"] += [whole.usage.total_tokens, streamed.usage.total_tokens]
        for form in (ToolOutput, NativeOutput):
            agent = Agent(model, output_type=form(Villager))
            found["villagers"].append((await agent.run(ORDER)).output.model_dump())
            async with agent.run_stream(ORDER) as streamed:
                found["villagers"].append((await streamed.get_output()).model_dump())
    report(**found)


asyncio.run(main())
