"""DSPy: a chat, and a field by a schema, whole and streamed. It sends schemas only to models that it knows."""

import asyncio

import dspy
from asked import MODEL, ORDER, QUESTION, URL, Villager, report


class Model(dspy.LM):
    supports_response_schema = True
    supported_params = frozenset({"response_format"})


async def streamed(program):
    """The prediction at the end of a stream."""
    *pieces, last = [piece async for piece in dspy.streamify(program)(order=ORDER)]
    assert pieces
    return last


job = Villager.model_fields["job"].annotation
program = dspy.Predict(dspy.Signature({"order": (str, dspy.InputField()), "job": (job, dspy.OutputField())}, "Answer."))
model = Model(f"openai/{MODEL}", api_base=URL, api_key="any", temperature=0, cache=False, num_retries=0)
with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
    found = [program(order=ORDER), asyncio.run(streamed(program))]
texts, tokens = model(QUESTION), [model.history[-1]["usage"]["total_tokens"]]
report(texts=texts, tokens=tokens, villagers=[{"name": "Ada", "job": each.job} for each in found])
