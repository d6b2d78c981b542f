"""Errors whose text is longer than what gRPC lets a status have."""

from typing import Any

import pytest
import tritonclient.grpc as triton
from repoagent_server.grpc.response import details
from tritonclient.utils import InferenceServerException


@pytest.mark.parametrize("text", ["", "x" * 6000, "é" * 500, "%" * 2000, "a\nb" * 1000])
def test_what_fits_is_left_as_it_is(text: str) -> None:
    assert details(text) == text


@pytest.mark.parametrize("char", ["x", "é", "😀", "%", "\n"])
def test_the_end_of_what_does_not_fit_is_cut(client: triton.InferenceServerClient, core: Any, char: str) -> None:
    name = char * 20_000
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(name, client_timeout=60)
    assert caught.value.status() == "StatusCode.INTERNAL"
    text = caught.value.message()
    assert text.startswith(f"failed to load '{char * 400}")
    assert text.endswith(" ... (cut)")
    assert core.calls == [("load", name, None, None)]
