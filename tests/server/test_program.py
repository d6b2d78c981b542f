"""Programs in the style of Triton's own examples; only what follows ``import`` is ours."""

import asyncio
import queue
from pathlib import Path

import numpy as np
import pytest

import repoagent.server as tritonserver
from repoagent.server.logs import server_log


def test_a_program_written_for_triton_runs(repository: Path) -> None:
    server_options = tritonserver.Options(
        server_id="ExampleServer",
        model_repository=str(repository),
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        exit_timeout=10,
    )
    server = tritonserver.Server(server_options).start(wait_until_ready=True)
    assert server.metadata()["name"] == "ExampleServer"
    assert all(model.state is None for model in server.models().values())

    model = server.load("text")
    assert ("text", 1) in server.models(exclude_not_ready=True)
    request = model.create_request()
    request.inputs["INPUT"] = tritonserver.Tensor.from_string_array(np.array(["hello", "world"], dtype=object))
    responses = list(server.model("text").infer(request))
    assert len(responses) == 1
    text_output = responses[0].outputs["OUTPUT"].to_string_array()
    assert list(text_output) == ["hello", "world"]

    response_queue: queue.SimpleQueue[tritonserver.InferenceResponse] = queue.SimpleQueue()
    for index in range(10):
        request.request_id = str(index)
        model.infer(request, response_queue=response_queue)
    assert sorted(int(response_queue.get(timeout=60).request_id or -1) for _ in range(10)) == list(range(10))

    with pytest.raises(tritonserver.InvalidArgumentError):
        model.infer(inputs={"INPUT": np.array([1.0], np.float32)})
    with pytest.raises(tritonserver.NotFoundError):
        server.model("nothing").infer()
    server.unload("text", wait_until_unloaded=True)
    assert not model.ready()
    server.stop()


def test_an_asynchronous_program_written_for_triton_runs(repository: Path) -> None:
    async def main() -> list[list[str]]:
        server = tritonserver.Server(
            model_repository=[str(repository)],
            model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
            startup_models=["text"],
            log_error=True,
        )
        server.start()

        async def send(prompt: str) -> list[str]:
            results = []
            async for response in server.model("text").async_infer(inputs={"INPUT": [prompt]}):
                results += response.outputs["OUTPUT"].to_string_array().tolist()
            return results

        answers = await asyncio.gather(*(send(f"prompt {number}") for number in range(20)))
        server.stop()
        return answers

    try:
        answers = asyncio.run(main())
    finally:
        server_log().detach()  # The log of the process, of which errors were switched on.
    assert answers == [[f"prompt {number}"] for number in range(20)]
