"""Pieces of the jail switched off one by one for ``.pt2``: what each denies succeeds then (``make models``)."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from agents.convert.tests.networks.test_hostile_pt2 import in_sample, run
from repoagent.beneath import jail
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.testing import AgentHarness
from tests.loader.converting.test_environments import outside as outside

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}"),
]
PIECES = "agents.convert.tests.networks.pieces"
ATTACKS = {
    "NoFiles": "pass",
    "NoNetwork": "import socket; socket.socket().close()",
    "NoPrograms": "import os; os.fork() or os._exit(0)",
    "NoAttributes": "import os; os.utime(OUTSIDE + '/secret')",
    "NoProcesses": "import fcntl, os; fcntl.fcntl(1, 8, os.getppid())",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_pt2_what_a_piece_denies_succeeds_without_it_alone(name: str, tmp_path: Path, outside: Path) -> None:
    done = tmp_path / "done"
    code = f"{ATTACKS[name].replace('OUTSIDE', repr(str(outside)))}\nopen({str(done)!r}, 'w').close()"
    converters = {(one.lower(), "onnx"): f"{PIECES}:{one}" for one in ("NoFiles", name)}
    settings = ConverterSettings(allow_code=True)
    with AgentHarness(tmp_path / "harness", converters=converters, converter_settings=settings) as harness:
        # Without Landlock alone, the mark could be written: it is the call that is denied.
        for kind in ("pt2", "nofiles")[: 1 + (name != "NoFiles")]:
            run(harness, tmp_path / kind, kind, in_sample(code))
            assert not done.exists()
        run(harness, tmp_path / "free", name.lower(), in_sample(code))
        assert done.exists()
