"""KServe's client asks a model of a table, whose names it takes from the server; a process of its own, as the messages
of KServe and of tritonclient have the same names. Its arguments: the server's URL, the model. It prints the answer."""

import asyncio
import json
import sys
import urllib.request
from typing import Any


async def main(url: str, model: str) -> None:
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    with urllib.request.urlopen(f"{url}/v2/models/{model}") as answer:
        (one,) = json.load(answer)["inputs"]
    given = InferInput(name=one["name"], shape=[2, one["shape"][1]], datatype=one["datatype"], data=[[0.5] * 6] * 2)
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=60, retries=0)) as client:
        found: Any = await client.infer(url, InferRequest(model_name=model, infer_inputs=[given]), model_name=model)
    print(json.dumps({output.name: output.as_numpy().tolist() for output in found.outputs}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
