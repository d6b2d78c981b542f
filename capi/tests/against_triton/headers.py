"""Triton's own headers and checksum agent, compiled as they are, over our library; with --triton, over a stock one too.

    python capi/tests/against_triton/headers.py --include DIR --agent FILE [--triton .venvs/triton]

DIR is ``include`` of Triton's repository ``core``, FILE is ``src/checksum.cc`` of ``checksum_repository_agent``. Both
are looked at only: nothing of them is part of this project. The agent needs OpenSSL (Debian: libssl-dev). With
--triton, the executable ``tritonserver`` of that wheel runs over our library, too. Development only.
"""

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import tritonclient.grpc
from repoagent_capi import INCLUDE, LIBRARY
from stock import MODEL, Failed, Stock, Triton, expect, running, write_model

from repoagent.errors import AgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

HERE: Final = Path(__file__).parent
WALK: Final = runpy.run_path(str(HERE.parent / "data" / "walk.py"))
NAMES: Final = ("tritonserver.h", "tritonrepoagent.h")
PLAIN: Final = MODEL.encode()
DIGEST: Final = hashlib.md5(PLAIN, usedforsecurity=False).hexdigest()
MISSING: Final = "failed to open text file for read 1/nope.bin: No such file or directory"
CASES: Final = {
    "right": ({"MD5:1/model.py": DIGEST}, ""),
    "lower": ({"md5:1/model.py": DIGEST}, ""),
    "wrong": (
        {"MD5:1/model.py": "0" * 32},
        f"Mismatched MD5 hash for file 1/model.py, expect: {'0' * 32}, got: {DIGEST}",
    ),
    "absent": ({"MD5:1/nope.bin": DIGEST}, MISSING),
    "no-colon": ({"1/model.py": DIGEST}, "failed to parse key: 1/model.py"),
    "sha": ({"SHA256:1/model.py": DIGEST}, "Unsupported checksum algorithm: SHA256"),
}
"""Parameters of Triton's agent, and why it refuses them."""


def compile_cc(*arguments: str | Path) -> None:
    command = ["c++", "-std=c++17", "-Wall", "-Wextra", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(f"{Path(arguments[0]).name} compiles against Triton's header", done.returncode == 0, done.stderr[-3000:])


def declared(header: Path) -> dict[str, tuple[str, ...]]:
    """Functions of a header with the types of their results and parameters, as far as they can differ."""
    found = {}
    for function in WALK["functions"](header):
        types = (function.result, *(parameter for parameter, _ in function.parameters))
        found[function.name] = tuple(re.sub(r"\bstruct |\bconst |\s", "", kind) for kind in types)
    return found


def values(compiler: str, include: Path, header: str, names: list[str], directory: Path) -> list[str]:
    """Name and value of each of the enumerators ``names``."""
    lines = "".join(f'  printf("{name} %d\\n", (int){name});\n' for name in names)
    source, program = directory / "values.cc", directory / "values"
    source.write_text(f'#include <stdio.h>\n#include "triton/core/{header}"\nint main(void) {{\n{lines}}}\n')
    subprocess.run([compiler, f"-I{include}", source, "-o", program], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def enumerators(header: Path) -> list[str]:
    """The names in all enumerations of a header."""
    text = re.sub(r"//[^\n]*", "", header.read_text())
    bodies = re.findall(r"typedef enum \w* ?\{([^}]*)\}", text)
    return [item.split()[0] for body in bodies for item in body.split(",") if item.strip()]


def compare(include: Path, directory: Path) -> None:
    for name in NAMES:
        theirs, ours = (declared(place / "triton" / "core" / name) for place in (include, INCLUDE))
        other = {function: (types, ours.get(function)) for function, types in theirs.items()}
        wrong = {function: pair for function, pair in other.items() if pair[0] != pair[1]}
        expect(f"all {len(theirs)} functions of {name} are declared the same here", not wrong, wrong)
        newer = sorted(ours.keys() - theirs.keys())
        print(f"    here too: {', '.join(newer) or 'none'}")
        names = enumerators(include / "triton" / "core" / name)
        both = [values("c++", place, name, names, directory) for place in (include, INCLUDE)]
        expect(f"all {len(names)} values of its enumerations are the same", both[0] == both[1], both)


def run_agent(directory: Path) -> None:
    """Triton's agent as one of ours: every outcome and text that a stock server logs."""
    with WorkspaceRoot(directory / "workspace") as workspace:
        loader = Loader(AgentRegistry(directory / "agents"), workspace)
        for name, (_, refusal) in CASES.items():
            reason = ""
            try:
                loader.load(open_source(name, str(directory / "repository" / name))).fail(RuntimeError())
            except AgentError as error:
                reason = str(error).removeprefix("agent 'triton': ")
            expect(f"Triton's agent, {name}: {refusal or 'accepts'}", reason == refusal, reason)
        loader.close()


def run_program(program: Path, directory: Path, what: str, variables: dict[str, str]) -> list[str]:
    command = [str(program), str(directory / "repository"), str(directory / "agents"), *CASES]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=200, check=False)
    expect(f"the program runs over {what}", done.returncode == 0, done.stdout + done.stderr[-4000:])
    return done.stdout.splitlines()


def run_server(stock: Stock, directory: Path) -> None:
    """The front ends of the wheel over our library: their executable finds it where it looks first."""
    home = directory / "server"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = str(shutil.copy(stock.home / "bin" / "tritonserver", home / "bin"))
    (home / "lib" / stock.library.name).symlink_to(LIBRARY)
    command = [program, "--model-repository", str(directory / "repository"), "--model-control-mode", "explicit"]
    command += ["--repoagent-directory", str(directory / "agents"), "--allow-gpu-metrics", "false"]
    trace = directory / "trace.json"
    command += [f"--trace-config={setting}" for setting in ("level=TIMESTAMPS", "rate=1", f"triton,file={trace}")]
    with running(command, directory / "log", stock.variables()) as triton:
        status, text = triton.load("right")
        expect("Triton's own executable, over our library, loads a model", status == 200, text + triton.log[-3000:])
        expect("it serves it over HTTP", triton.infers("right"), triton.log[-3000:])
        status, text = triton.load("wrong")
        expect("it refuses a wrong digest", status >= 400 and "failed to load 'wrong'" in text, text)
        expect("it serves it over gRPC", infers_over_grpc(triton.grpc), triton.log[-3000:])
        counted = 'nv_inference_request_success{model="right",version="1"} 2' in triton.metrics()
        expect("its metrics count both requests", counted, triton.metrics())
        config = json.dumps({"backend": "identity", "input": [], "output": []})
        status, text = triton.load("right", config=config)
        expect("a configuration in the request replaces the model's", '"backend":"identity"' in config_of(triton), text)
        expect("it stops on SIGTERM", triton.end(signal.SIGTERM) == 0, triton.log[-3000:])
    moments = re.findall(r'"name":"(\w+)"', trace.read_text())
    expect("its file of traces has the moments of both", moments.count("COMPUTE_END") == 2, moments)


def infers_over_grpc(address: str) -> bool:
    """Whether the model negates."""
    values = np.array([1, 2, 3, 4], np.float32)
    given = tritonclient.grpc.InferInput("IN", [4], "FP32")
    given.set_data_from_numpy(values)
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return np.array_equal(client.infer("right", [given]).as_numpy("OUT"), -values)


def config_of(triton: Triton) -> str:
    return "".join(triton.get("models/right/config").split())


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", type=Path, help="the directory above Triton's triton/core/tritonserver.h")
    parser.add_argument("--agent", type=Path, help="the source of Triton's checksum agent")
    parser.add_argument("--triton", type=Path, help="a virtual environment with nvidia-pytriton")
    options = parser.parse_args()
    if options.include is None or options.agent is None:
        print("skipped: it needs Triton's headers (--include) and the source of its checksum agent (--agent)")
        return 0
    with tempfile.TemporaryDirectory() as made:
        try:
            check(options.include.resolve(), options.agent, options.triton, Path(made))
        except Failed as error:
            print(error)
            return 1
    return 0


def check(include: Path, source: Path, triton: Path | None, directory: Path) -> None:
    header = (include / "triton" / "core" / "tritonserver.h").read_text()
    version = re.search(r"API_VERSION_MINOR (\d+)", header)
    print(f"Triton's header is of API 1.{version[1] if version else '?'}")
    compare(include, directory)
    agent = directory / "agents" / "triton" / "libtritonrepoagent_triton.so"
    agent.parent.mkdir(parents=True)
    compile_cc(source, f"-I{include}", "-shared", "-fPIC", "-o", agent, "-lcrypto")
    program = directory / "program"
    compile_cc(HERE / "program.cc", f"-I{include}", f"-L{LIBRARY.parent}", "-ltritonserver", "-o", program, "-pthread")
    for name, (parameters, _) in CASES.items():
        write_model(directory / "repository" / name, {"triton": parameters}, {"model.py": PLAIN})
    run_agent(directory)
    ours = run_program(program, directory, "our library", {"LD_LIBRARY_PATH": str(LIBRARY.parent)})
    right = [f"{name}: ready 1: OUT FP32 -1 -2 -3 -4" for name in ("right", "lower")]
    expect("it loads through Triton's agent, and infers", ours[:3] == ["version fits: 1", *right], ours)
    if triton is None:
        print("skipped: the same over a stock Triton (--triton)")
        return
    stock = Stock(triton.resolve())
    backends = stock.backends(directory / "backends")
    links = directory / "links"
    links.mkdir()
    (links / "libtritonserver.so").symlink_to(stock.library)
    variables = stock.variables(BACKENDS=str(backends))
    variables["LD_LIBRARY_PATH"] = f"{links}{os.pathsep}{stock.libraries}"
    theirs = run_program(program, directory, f"the library of nvidia-pytriton {stock.version}", variables)
    expect("the same program prints the same over both", ours == theirs, "\n".join([*ours, "--", *theirs]))
    run_server(stock, directory)


if __name__ == "__main__":
    sys.exit(main())
