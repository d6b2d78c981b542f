"""Files that run code, and how a scan calls them: ``python -m agents.scan.tests.test_corpus`` prints a table.

The imports are those of the test files of picklescan 1.0.5 (MIT) and of fickling's tests, as their own tests name
them; the files are written here, by recipes of this project, in all ways in which a pickle can import and call.
The containers are those of picklescan's ``data`` and ``data2`` and of fickling's tests of polyglots. The rest are the
forms with which a scan of this project was once walked round.
"""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from repoagent_scan.scan_options import Options
from repoagent_scan.scanning import scan

from agents.scan.tests.making_models import onnx_model, safetensors, with_external_data
from repoagent.api import opened_files
from repoagent.testing import write_files

IMPORTS = (
    """
__builtin__ eval|__builtin__ exec|__builtin__ compile|__builtin__ apply|__builtin__ getattr|builtins eval|builtins exec
posix system|nt system|os system|os popen|subprocess run|subprocess Popen|socket create_connection|sys exit|pty spawn
httplib HTTPSConnection|requests.api get|aiohttp.client ClientSession|ssl get_server_certificate|webbrowser open
torch.utils.bottleneck.__main__ run_cprofile|torch._dynamo.guards GuardBuilder.get|torch.utils.collect_env run
torch.fx.experimental.symbolic_shapes ShapeEnv.evaluate_guards_expression|torch.jit.unsupported_tensor_ops execWrapper
torch.utils.data.datapipes.utils.decoder basichandlers|torch.utils._config_module ConfigModule.load_config
trace Trace.run|profile Profile.runctx|profile run|cProfile run|cProfile runctx|lib2to3.pgen2.grammar Grammar.loads
idlelib.debugobj ObjectTreeItem.SetText|idlelib.autocomplete AutoComplete.get_entity|idlelib.calltip get_entity
code InteractiveInterpreter.runcode|idlelib.run Executive.runcode|idlelib.pyshell ModifiedInterpreter.runcommand
doctest debug_script|asyncio.unix_events _UnixSubprocessTransport._start|distutils.file_util write_file|ctypes CDLL
pydoc locate|operator methodcaller|_operator attrgetter|builtins __import__|numpy.f2py.crackfortran getlincoef
_io FileIO|types CodeType|ensurepip _run_pip|marshal loads|types FunctionType|runpy run_path|importlib import_module
multiprocessing.util spawnv_passfds|collections Counter|unknown os|42 os
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

RAN: list[str] = []


def ran(*arguments: object) -> str:
    """What the pickles of this page call, so that a test can see that they run."""
    RAN.append("ran")
    return "ran"


CALL = b"cagents.scan.tests.test_corpus\nran\n(tR."


def ways(module: str, name: str) -> Iterator[tuple[str, bytes]]:
    """Every way to import ``name`` and to call it."""
    line = f"{module}\n{name}\n".encode()
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    yield "GLOBAL REDUCE", b"c" + line + b"(S'id'\ntR."
    yield "INST", b"(S'id'\ni" + line + b"."
    yield "OBJ", b"(c" + line + b"S'id'\no."
    yield "NEWOBJ", b"\x80\x02c" + line + b")\x81."
    yield "BUILD", b"c" + line + b"}b."
    yield "STACK_GLOBAL REDUCE", b"\x80\x04" + texts + b"\x93)R."
    yield "framed, memoized", b"\x80\x05\x95" + struct.pack("<Q", len(texts) + 6) + texts + b"\x93\x94)\x94R."
    yield "without STOP", b"\x80\x04" + texts + b"\x93)R"
    yield "protocol given twice", b"\x80\x04\x80\x02" + texts + b"\x93)R."
    yield "behind other pickles", pickle.dumps([1, 2]) + pickle.dumps("x", 0) + b"c" + line + b")R."


def zipped(name: str, content: bytes, *, flags: int = 0, crc: bool = True, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr(name, content)
    made = bytearray(buffer.getvalue())
    central = made.index(b"PK\1\2")
    made[6] |= flags
    made[central + 8] |= flags
    if not crc:
        made[14] ^= 1
    return bytes(made)


def tarred(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def saved(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def containers() -> Iterator[tuple[str, bytes]]:
    """One pickle, packed as picklescan's and fickling's files are."""
    yield "zip", zipped("data.pkl", CALL)
    yield "zip, deflated", zipped("data.pkl", CALL, method=zipfile.ZIP_DEFLATED)
    for flag in (0x1, 0x20, 0x40):
        yield f"zip, flag {flag:#x}", zipped("data.pkl", CALL, flags=flag)
    yield "zip, member of another name", zipped("data.txt", CALL)
    yield "zip, wrong checksum", zipped("data.pkl", CALL, crc=False)
    yield "zip, first header damaged", b"XX" + zipped("data.pkl", CALL)[2:]
    yield "zip behind a picture", b"\x89PNG\r\n\x1a\n" + bytes(64) + zipped("archive/data.pkl", CALL)
    yield "7z", b"7z\xbc\xaf\x27\x1c" + bytes(64)
    yield "tar", tarred("pickle", CALL)
    yield "tar and zip", tarred("pickle", CALL) + zipped("data.pkl", CALL)
    yield "pickle and zip", CALL + zipped("data.pkl", CALL)
    yield "PyTorch, one pickle after the other", pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + CALL
    yield "PyTorch, magic number computed", b"c__builtin__\neval\n(S'0x1950A86A20F9469CFC6C'\ntR." + CALL
    yield "NumPy objects", saved(np.array([{}], dtype=object))
    yield "npz", zipped("a.npy", saved(np.array([{}], dtype=object)))
    yield "picture named as a pickle", b"\x89PNG\r\n\x1a\n" + bytes(range(64))
    yield "joblib, zlib", zlib.compress(CALL)
    yield "joblib, gzip", gzip.compress(CALL)
    yield "joblib, bz2", bz2.compress(CALL)
    yield "joblib, xz", lzma.compress(CALL)
    yield "joblib, lzma", lzma.compress(CALL, format=lzma.FORMAT_ALONE)
    yield "joblib, zfile", b"ZF0x1f              " + zlib.compress(CALL)


LONG = 9 << 20


def pickles() -> Iterator[tuple[str, bytes]]:
    """Forms that the C unpickler runs, and that look like text or weights."""
    yield "an argument of 9 MiB", b"V" + b"a" * LONG + b"\n0" + CALL
    yield "a number of 9 MiB", b"I0x" + b"0" * LONG + b"\n0" + CALL
    yield "a binary argument of 9 MiB", b"\x80\x04B" + struct.pack("<I", LONG) + bytes(LONG) + b"0" + CALL
    yield "8 bytes of length", b"\x80\x04\x8e" + struct.pack("<Q", LONG) + bytes(LONG) + b"0" + CALL
    for code in b"I", b"L", b"F":
        yield f"NUL in an argument of {code.decode()}", code + b"1\0 anything\n0" + CALL
    yield "NUL in a key", b"Np1\0 anything\n0" + CALL
    yield "NUL in a text", b"Va\0b\n0" + CALL
    yield "GGUF as a number", b"GGUF\3\0\0\0\7" + b"0" + CALL
    yield "an empty number", b"I\0\n0" + CALL
    yield "an empty text", b"V\n0" + CALL


def evil() -> bytes:
    return onnx_model(helper.make_node("Evil", ["x"], ["y"], domain="com.vendor")).SerializeToString()


def group(content: bytes) -> bytes:
    """``content`` in a group that no ONNX reader knows: they pass over it."""
    return b"\x93\x4e" + content + b"\x94\x4e"


def as_array() -> bytes:
    """A NumPy array to who looks at the beginning, and groups and texts of unknown fields to ONNX's readers."""
    model = evil()
    header = b"{'descr':'|u1','fortran_order':False,'shape':(%9d,)}" % (len(model) + 3)
    header = header.ljust(0x75) + b"\n"
    return b"\x93NUMPY\1\x5a" + struct.pack("<H", len(header)) + header + b"\0\x94\x4e" + model


def as_safetensors() -> bytes:
    """The header's size begins a text of an unknown field, which the header ends; each two blanks are a number."""
    model = evil()
    header = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(model), len(model))
    return struct.pack("<Q", 0x705A) + header.ljust(0x705A) + model


def onnx_besides() -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """ONNX models that the scan once took for something else, named by the configuration or by a decoy."""
    config = b'backend: "onnxruntime" default_model_filename: "w.bin"'
    grouped = group(b"\x0a\x01x") + evil()
    behind = {"behind a group": grouped, "as a NumPy array": as_array(), "as safetensors": as_safetensors()}
    for name, content in behind.items():
        assert onnx.load_model_from_string(content).graph.node[0].op_type == "Evil"
        yield f"ONNX {name}", {"config.pbtxt": config, "1/w.bin": content}
        yield f"ONNX {name}, which nothing opens", {"1/model.onnx": GOOD, "1/w.bin": content}
    decoy = with_external_data("w.bin", len(grouped))
    yield "ONNX behind a group, named by a decoy", {"config.pbtxt": config, "1/d.onnx": decoy, "1/w.bin": grouped}
    for name, content in (("text", b"cat\n"), ("safetensors", safetensors()), ("a GGUF", b"GGUF\3\0\0\0")):
        yield f"{name} opened as ONNX", {"config.pbtxt": config, "1/w.bin": content}


def external() -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Pickles that an ONNX model names as its weights, all of them."""
    for name, content in [*pickles(), *containers()]:
        if name != "picture named as a pickle":
            yield f"weights: {name}", {"1/model.onnx": with_external_data("w.bin", len(content)), "1/w.bin": content}
    some = with_external_data("w.bin", 16)
    yield "weights of 16 bytes, and 1 more", {"1/model.onnx": some, "1/w.bin": bytes(range(16)) + b"\xff"}
    yield "weights of 16 bytes, and 64 KiB more", {"1/model.onnx": some, "1/w.bin": b"\xff" * 16 + bytes(1 << 16)}
    yield "weights of 16 bytes, 15 there", {"1/model.onnx": some, "1/w.bin": b"\xff" * 15}


def code() -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """What the configuration has run."""
    python = b'backend: "python" default_model_filename: "m.txt"'
    source = b"class TritonPythonModel: pass\n"
    for name in "m.txt", "./m.txt", "sub/m.json":
        config = python.replace(b"m.txt", name.encode())
        yield f"Python in {name}", {"config.pbtxt": config, f"1/{name}": source}
    for path in "run.txt", "env":
        named = b'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/%s" } }'
        program = "run.txt" if path == "run.txt" else "env/bin/python"
        yield (
            f"interpreter in {program}",
            {
                "config.pbtxt": b'backend: "python"' + named % path.encode(),
                program: b"echo owned\n",
            },
        )
    yield "a shell script", {"1/model.onnx": GOOD, "run.txt": b"#!/bin/sh\n"}
    model = onnx_model(helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft"))
    model.functions.add(name="EPContext", domain="com.microsoft")
    yield "a built-in operator under the name of a function", {"1/model.onnx": model.SerializeToString()}


GOOD = onnx_model().SerializeToString()


def bad_models() -> Iterator[tuple[str, Mapping[str, bytes]]]:
    for entry in IMPORTS:
        module, name = entry.split(" ")
        for way, content in ways(module, name):
            yield f"{entry}: {way}", {"1/weights": content}
    for kind, content in [*containers(), *pickles()]:
        yield kind, {"1/weights": content}
    yield from external()
    yield from onnx_besides()
    yield from code()


def verdict(files: Mapping[str, bytes]) -> str:
    """``found`` if the scan names what it is, ``refused`` if it cannot read it, or ``passed``."""
    with tempfile.TemporaryDirectory() as directory:
        root = write_files(Path(directory) / "m", files)
        findings = scan(root, Options(), opened=opened_files(root, name="m")).findings
    named = ("pickle", "python", "archive", "native-code", "ONNX model with parts", "reads it as onnx")
    if any(word in finding.reason for finding in findings for word in named):
        return "found"
    return "refused" if findings else "passed"


@pytest.mark.slow
def test_no_file_that_runs_code_passes() -> None:
    verdicts = {name: verdict(files) for name, files in bad_models()}
    assert [name for name, result in verdicts.items() if result == "passed"] == []
    assert sum(result == "found" for result in verdicts.values()) > 600


@pytest.mark.parametrize(("name", "content"), list(pickles()), ids=[name for name, _ in pickles()])
def test_the_pickles_of_this_page_run(name: str, content: bytes) -> None:
    RAN.clear()
    stream = io.BytesIO(content)
    assert pickle.load(stream) == "ran", name
    assert RAN == ["ran"]


@pytest.mark.parametrize(
    ("files", "formats"),
    [
        ({"1/w.npy": saved(np.zeros((2, 3)))}, {"numpy": 1}),
        ({"1/w.safetensors": safetensors()}, {"safetensors": 1}),
        (
            {"1/model.onnx": with_external_data("w.bin", 16), "1/w.bin": b"\xff" * 16},
            {"onnx": 1, "onnx-external-data": 1},
        ),
        ({"labels.txt": b"x^2 + 1\nIt is a text\n(and more)\n"}, {"text": 1}),
    ],
    ids=["numpy", "safetensors", "external", "text"],
)
def test_harmless_files_pass(tmp_path: Path, files: Mapping[str, bytes], formats: Mapping[str, int]) -> None:
    scanned = scan(write_files(tmp_path / "m", files), Options())
    assert (scanned.findings, dict(scanned.formats)) == ([], formats)


def test_random_weights_are_taken_for_nothing_else(tmp_path: Path) -> None:
    generator = np.random.default_rng(24)
    for number in range(500):
        (tmp_path / f"{number}.bin").write_bytes(generator.normal(size=300).astype(np.float32).tobytes())
    assert set(scan(tmp_path, Options()).formats) == {"unknown"}


def main() -> None:
    verdicts = [(verdict(files), name) for name, files in bad_models()]
    for result, name in verdicts:
        sys.stdout.write(f"{result:8} {name}\n")
    counts = {result: sum(one == result for one, _ in verdicts) for result in ("found", "refused", "passed")}
    sys.stdout.write(f"{counts}\n")


if __name__ == "__main__":
    main()
