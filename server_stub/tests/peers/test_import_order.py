"""Nothing of this package clashes with tritonclient in one process, whichever is imported first.

Messages of one name in two packages are an error of protobuf at import; each order is a process of its own.
"""

import subprocess
import sys

import pytest

_OURS = "import repoagent_server.grpc.frontend, repoagent_server.grpc.service, repoagent_server.frontends"
_TRITON = "import tritonclient.grpc, tritonclient.grpc.aio, tritonclient.http"
_USE = """
from tritonclient.grpc import service_pb2
from repoagent_server.grpc import messages_pb2
message = messages_pb2.ModelInferRequest(model_name="m", id="r", raw_input_contents=[b"ab"])
theirs = service_pb2.ModelInferRequest.FromString(message.SerializeToString())
assert (theirs.model_name, theirs.id, list(theirs.raw_input_contents)) == ("m", "r", [b"ab"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("imports", [(_OURS, _TRITON), (_TRITON, _OURS)], ids=["ours first", "tritonclient first"])
def test_tritonclient_beside_this_package(imports: tuple[str, str]) -> None:
    program = "\n".join((*imports, _USE))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
