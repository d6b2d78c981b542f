"""OpenAI's agents over responses, their default, and over chats. They run the tool and send its result back."""

import asyncio
import json

from asked import MODEL, ORDER, QUESTION, URL, Villager, report, visit

import agents

agents.set_tracing_disabled(True)


async def main() -> None:
    client = agents.AsyncOpenAI(base_url=URL, api_key="any", max_retries=0)
    found = {"texts": [], "tokens": [], "visits": [], "villagers": []}
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        agent = agents.Agent("plain", model=kind(MODEL, client))
        agent.model_settings = agents.ModelSettings(temperature=0, include_usage=True)
        whole, streamed = await agents.Runner.run(agent, QUESTION), agents.Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        for run in (whole, streamed):
            found["texts"].append(run.final_output)
            found["tokens"].append(run.context_wrapper.usage.total_tokens)
        settings = agents.ModelSettings(temperature=0, tool_choice="required")
        caller = agent.clone(tools=[agents.function_tool(visit)], model_settings=settings)
        call, result, answer = (await agents.Runner.run(caller, QUESTION)).new_items
        assert (result.output, answer.type) == (json.loads(call.raw_item.arguments)["place"], "message_output_item")
        found["visits"].append(json.loads(call.raw_item.arguments))
        run = await agents.Runner.run(agent.clone(output_type=Villager), ORDER)
        found["villagers"].append(run.final_output.model_dump())
    report(**found)


asyncio.run(main())
