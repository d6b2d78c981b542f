"""Where repoagent-capi is built and run: without a compiler, and with an interpreter that is linked statically."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CAPI = Path(__file__).parents[1]
LOAD = """
import sys
from pathlib import Path
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

root = Path(sys.argv[1])
with WorkspaceRoot(root / "workspace") as workspace:
    loader = Loader(AgentRegistry(root / "agents"), workspace)
    chain = loader.load(open_source("m", str(root / "repository" / "m")))
    chain.complete()
    chain.unload()
    chain.unload_complete()
    loader.close()
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake on this machine")
def test_without_a_compiler_the_build_states_what_to_install(tmp_path: Path) -> None:
    """pip shows what CMake prints when a build fails."""
    done = subprocess.run(
        ["cmake", "-S", CAPI, "-B", tmp_path],
        env={**os.environ, "CC": "/nowhere/cc"},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "no C compiler (cc) was found. Install one (on Debian: apt-get install gcc)" in printed
    assert "repoagent itself works without this package." in printed


def _static_interpreter() -> str:
    """Another interpreter of this version that brings no library, as Debian's does."""
    if shutil.which("ldd") is None:
        pytest.skip("no ldd on this machine")
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = str(Path(sys.base_prefix) / "bin" / name)
    candidates = {own, *(f"{place}/{name}" for place in ("/usr/bin", "/usr/local/bin"))}
    for path in sorted(filter(os.path.exists, candidates)):
        listing = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
        if listing.returncode == 0 and "libpython" not in listing.stdout:
            return path
    pytest.skip(f"no {name} on this machine that is linked statically")


def test_native_agents_run_in_a_statically_linked_interpreter(compile_c: Any, capi: Path, tmp_path: Path) -> None:
    interpreter = _static_interpreter()
    compile_c.agent("recording_agent.c", "a", tmp_path / "agents")
    model = tmp_path / "repository" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('model_repository_agents { agents [ { name: "a" } ] }\n')
    packages = [str(CAPI.parent), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    done = subprocess.run(
        [interpreter, "-c", LOAD, tmp_path],
        env={"PYTHONPATH": os.pathsep.join(packages), "TRACE": str(tmp_path / "trace.txt"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = (tmp_path / "trace.txt").read_text().splitlines()
    calls = ("Init", "MInit", "LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE", "MFini", "Fini")
    assert events == [f"a {event}" for event in calls]
