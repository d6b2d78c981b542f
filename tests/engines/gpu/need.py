"""Tests that need a GPU: skipped with the reason, or failed where they have to run."""

import os
from functools import cache
from typing import Final, NoReturn

import pytest

from repoagent.engines.probe import Findings, probe

MUST_RUN: Final = "REPOAGENT_TESTS_NEED_GPU"
"""The environment variable that makes a failure of what is skipped where no plan can run."""


@cache
def _findings() -> Findings:
    return probe()


def need_gpu() -> Findings:
    """What the probe found. Skip the test where no plan can run; fail it where it has to."""
    found = _findings()
    if not found.usable:
        cannot_run(found.problem)
    return found


def need_cuda() -> None:
    """Skip the test where CUDA finds no GPU; fail it where it has to run."""
    if problem := _cuda_problem():
        cannot_run(problem)


def cannot_run(problem: str) -> NoReturn:
    """Skip a test, or fail it where it has to run."""
    if os.environ.get(MUST_RUN, "") not in ("", "0"):
        pytest.fail(f"{MUST_RUN} is set, but {problem}")
    pytest.skip(problem)


@cache
def _cuda_problem() -> str:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        return f"cuda-bindings cannot be imported: {error}"
    status, count = runtime.cudaGetDeviceCount()
    if int(status) != 0:
        return f"CUDA finds no usable driver ({status.name}): install NVIDIA's driver, or check that it is new enough"
    return "" if count else "CUDA lists no GPU: check CUDA_VISIBLE_DEVICES, and that the container was given GPUs"
