"""``--processes``: a model in a worker, in Python and hostile, looks for the keys that the keeper has."""

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from repoagent.beneath.jail import landlock_version
from server_stub.tests.serve.conftest import PROGRAM
from server_stub.tests.serve.test_processes import SECRET, connections

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

THIEF = '''
import ctypes, json, os, re, signal
import numpy as np
import triton_python_backend_utils as pb_utils

libc = ctypes.CDLL(None, use_errno=True)

def ancestors():
    """Up to the keeper: the processes above this one that run the server."""
    pid, found = os.getpid(), []
    while pid > 1:
        found.append(pid)
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return found

def keeper():
    named = [pid for pid in ancestors() if b"serve" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")]
    return named[0]

def memory(pid):
    content = b""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            if "[heap]" in line or "[stack]" in line:
                start, end = (int(one, 16) for one in re.match("(\\\\w+)-(\\\\w+)", line).groups())
                mem.seek(start)
                content += mem.read(end - start)
    return content

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

def remote(pid):
    start = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[47])
    into = ctypes.create_string_buffer(4096)
    here, there = Piece(ctypes.addressof(into), 4096), Piece(start or 4096, 4096)
    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return into.raw

def attached(pid):
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return b"attached"

def descriptor(pid):
    fd = os.pidfd_open(pid)
    taken = libc.syscall(438, fd, 0, 0)
    os.close(fd)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return b"taken"

def opened(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            os.close(os.open(f"/proc/{pid}/fd/{name}", os.O_RDONLY | os.O_NONBLOCK))
            return b"opened"
        except PermissionError as error:
            failure = error
    raise failure

def signalled(pid):
    os.kill(pid, 0)
    return b"signalled"

def own():
    """What this process and its parents below the keeper have: environment, files, memory by name."""
    content = json.dumps(dict(os.environ)).encode()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("/") and os.path.isfile(target) and os.path.getsize(target) < 1 << 20:
                content += open(target, "rb").read()
        except OSError:
            pass
    return content

def tried(work, *arguments):
    try:
        return work(*arguments)
    except OSError as error:
        return f"denied: {error.errno}".encode()

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            secret = pb_utils.get_input_tensor_by_name(request, "REVERSED").as_numpy().ravel()[0][::-1]
            pid = keeper()
            found = {
                "environment": tried(lambda: open(f"/proc/{pid}/environ", "rb").read()),
                "memory": tried(memory, pid),
                "remote": tried(remote, pid),
                "debugger": tried(attached, pid),
                "descriptors": tried(descriptor, pid),
                "opened": tried(opened, pid),
                "signal": tried(signalled, pid),
                "own": tried(own),
            }
            text = {name: "KEY" if secret in one else one[:40].decode("latin1") for name, one in found.items()}
            array = np.array([json.dumps(text).encode()], np.object_)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", array)]))
        return answers
'''
CONFIG = """
backend: "python"
input { name: "REVERSED" data_type: TYPE_STRING dims: 1 }
output { name: "FOUND" data_type: TYPE_STRING dims: 1 }
"""
IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in-process" } }'

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="the kernel has no Landlock")


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    for name, config in (("inside", CONFIG + IN_PROCESS), ("child", CONFIG)):
        (world.models / name / "1").mkdir(parents=True)
        (world.models / name / "1" / "model.py").write_text(THIEF)
        (world.models / name / "config.pbtxt").write_text(config)
    flags = ("--processes=2", "--load-model=inside", "--load-model=child")
    return world.serve(*flags, env={"SOME_KEY": SECRET}, program=PROGRAM)


def stolen(server: "Server", model: str) -> list[dict[str, Any]]:
    """What a thief finds, asked over several connections."""
    tensor = {"name": "REVERSED", "datatype": "BYTES", "shape": [1], "data": [SECRET[::-1]]}
    answers = []
    with connections(server) as clients:
        for client in clients[:6]:
            answer = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})
            assert answer.status_code == 200, answer.text
            answers.append(json.loads(answer.json()["outputs"][0]["data"][0]))
    return answers


def replace_workers(server: "Server") -> None:
    """Have it replace its workers, and wait for that."""
    before = server.log.count("all worker processes have been replaced")
    server.process.send_signal(signal.SIGUSR2)
    server.until(lambda: server.log.count("all worker processes have been replaced") > before, "new workers")


def test_a_model_in_a_worker_finds_no_key(server: "Server") -> None:
    """Also where all run as root: no worker may look into the keeper; nor may one that took another's place."""
    for reload in (False, True):
        if reload:
            replace_workers(server)
        for found in stolen(server, "inside") + stolen(server, "child"):
            assert "KEY" not in found.values()
            ways = ("environment", "memory", "remote", "debugger", "descriptors", "opened")
            assert {way: found[way] for way in ways if not found[way].startswith("denied")} == {}
            assert landlock_version() < 6 or found["signal"].startswith("denied")
