"""The server inside a FastAPI application: its models, your routes, one process.

    pip install fastapi uvicorn
    MODEL_REPOSITORY=examples/digits/repository uvicorn --app-dir examples/embed fastapi_app:app
    curl -d '{"pixels": [0,0,5,13,9,1,0,0,0,0,13,15,10,15,5,0,0,3,15,2,0,11,8,0,0,4,12,0,0,8,8,0,
              0,5,8,0,0,9,8,0,0,4,11,0,1,12,7,0,0,2,14,5,10,12,0,0,0,0,6,13,10,0,0,0]}' \
         -H 'Content-Type: application/json' localhost:8000/digits

The event loop is never blocked: ``async_infer`` hands the request to the model's own thread and awaits the answer.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from repoagent.server import InvalidArgumentError, ModelControlMode, Server, TritonError


class Digit(BaseModel):
    """8 by 8 pixels, row by row, from 0 (white) to 16 (black)."""

    pixels: list[float]


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[None]:
    server = Server(model_repository=os.environ["MODEL_REPOSITORY"], model_control_mode=ModelControlMode.EXPLICIT)
    await run_in_threadpool(server.start)
    try:
        await run_in_threadpool(server.load, "digits")
        app.state.server = server
        yield
    finally:
        await run_in_threadpool(server.stop)


app = FastAPI(lifespan=serving)


@app.get("/models")
def models(request: Request) -> list[dict[str, Any]]:
    """What the repository has."""
    found = request.app.state.server.models().values()
    return [{"name": model.name, "version": model.version, "state": model.state} for model in found]


@app.post("/digits")
async def digits(digit: Digit, request: Request) -> dict[str, Any]:
    """Which digit it is."""
    model = request.app.state.server.model("digits")
    pixels = np.array([digit.pixels], np.float32)
    try:
        response = await anext(model.async_infer(inputs={model.metadata()["inputs"][0]["name"]: pixels}))
    except InvalidArgumentError as error:
        raise HTTPException(422, str(error)) from error
    except TritonError as error:
        raise HTTPException(500, str(error)) from error
    return {name: np.asarray(tensor)[0].tolist() for name, tensor in response.outputs.items()}
