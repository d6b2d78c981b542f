"""LlamaIndex for servers like OpenAI's: chats, calls, and an object by a call (streamed, it demands no call)."""

from asked import MODEL, ORDER, QUESTION, URL, Villager, report, visit
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

kind = {"context_window": 512, "is_chat_model": True, "is_function_calling_model": True}
model = OpenAILike(model=MODEL, api_base=URL, api_key="any", temperature=0, max_retries=0, **kind)
question, order = ([ChatMessage(role="user", content=text)] for text in (QUESTION, ORDER))
whole, *_, streamed = model.chat(question), *model.stream_chat(question)
calling = {"tools": [FunctionTool.from_defaults(visit)], "chat_history": question, "tool_required": True}
call, *_, streamed_call = model.chat_with_tools(**calling), *model.stream_chat_with_tools(**calling)
report(
    texts=[whole.message.content, streamed.message.content, model.complete(QUESTION).text],
    tokens=[whole.raw.usage.total_tokens],
    visits=[model.get_tool_calls_from_response(each)[0].tool_kwargs for each in (call, streamed_call)],
    villagers=[model.as_structured_llm(Villager).chat(order).raw.model_dump()],
)
