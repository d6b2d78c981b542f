"""KServe's client asks models of tables, whose names it takes from the server; a process of its own, as the messages
of KServe and of tritonclient have the same names. Its arguments: the server's URL, the models. It prints the answers.
"""

import asyncio
import json
import sys
import urllib.request
from typing import Any


async def main(url: str, *models: str) -> None:
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    answers = {}
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=60, retries=0)) as client:
        for model in models:
            with urllib.request.urlopen(f"{url}/v2/models/{model}") as answer:
                (one,) = json.load(answer)["inputs"]
            rows, shape = [[0.5] * 6] * 2, [2, one["shape"][1]]
            given = InferInput(name=one["name"], shape=shape, datatype=one["datatype"], data=rows)
            asked = InferRequest(model_name=model, infer_inputs=[given])
            found: Any = await client.infer(url, asked, model_name=model)
            answers[model] = {output.name: output.as_numpy().tolist() for output in found.outputs}
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
