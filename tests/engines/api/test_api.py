"""What is written against TensorRT fits its interface: mypy over a stub per version, and planted mistakes.

The stubs are made from ``tensorrt-11.4.txt`` and ``tensorrt-rtx-1.7.txt``, lists of names and signatures read from the
bindings themselves. No TensorRT is needed.
"""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from repoagent.engines.flavours import Flavour, module_name
from tests.engines.api.surface import FILES, Surface, stub_of

pytestmark = pytest.mark.slow

PACKAGE: Final = Path(__file__).parents[3] / "repoagent"
ENGINE: Final = PACKAGE / "engines/cuda/engine.py"
ONLY_RTX: Final = ("engines/cuda/platform.py",)
"""Modules about what TensorRT for RTX alone has."""

CONFIGURATION: Final = """
[mypy]
strict = true
python_version = 3.11
follow_imports = silent
explicit_package_bases = true
disable_error_code = unused-ignore

[mypy-cuda.*]
ignore_missing_imports = true
[mypy-tensorrt.*]
follow_imports = normal
"""


def _surface(version: str) -> Surface:
    listed = FILES / "tensorrt-11.4.txt"
    match version:
        case "10.15":
            return Surface().read(listed, (10, 15))
        case "11.0":
            return Surface().read(listed, (11, 0))
        case "11.4":
            return Surface().read(listed, (11, 4))
        case _:
            return Surface().read(listed, (11, 4)).read(FILES / "tensorrt-rtx-1.7.txt", (11, 4))


def _users() -> list[Path]:
    """Every module of the package that uses TensorRT."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"^\s*from repoagent\.engines\.bindings import", path.read_text(), re.MULTILINE)
    ]


def _mypy(directory: Path, version: str, *files: Path) -> list[str]:
    """The complaints of mypy about ``files``, over the stub of ``version``."""
    stub = directory / version / "tensorrt"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "__init__.pyi").write_text(stub_of(_surface(version)))
    configuration = directory / "mypy.ini"
    configuration.write_text(CONFIGURATION)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", configuration, "--cache-dir", directory / "cache", *files],
        env={"MYPYPATH": f"{stub.parent}:{PACKAGE.parent}", "PATH": "/usr/bin:/bin"},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    # The bindings themselves are not always consistent: a layer's type hides that of its base class, and so on.
    return [line for line in done.stdout.splitlines() if ": error:" in line and "/tensorrt/__init__.pyi" not in line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mypy works: what it found out about other packages for one version is there for the next."""
    return tmp_path_factory.mktemp("mypy")


# A mistake: what stands in engine.py, and what a hurried author might have written.
MISTAKES: Final = {
    "a method of TensorRT 8": (".execute_async_v3(stream.handle)", ".execute_async_v2(stream.handle)"),
    "a missing argument": (".execute_async_v3(stream.handle)", ".execute_async_v3()"),
    "an object in place of its handle": (".execute_async_v3(stream.handle)", ".execute_async_v3(stream)"),
    "a shape in place of its parts": (".set_input_shape(name, shape)", ".set_input_shape(name, *shape)"),
    "arguments the wrong way round": (".set_tensor_address(name, address)", ".set_tensor_address(address, name)"),
    "a profile by name": ("set_optimization_profile_async(index,", "set_optimization_profile_async(str(index),"),
    "without a stream": ("_profile_async(index, stream.handle)", "_profile_async(index)"),
    "an enum that moved": ("trt.TensorLocation.HOST", "trt.TensorLocation.CPU"),
    "a format that is not there": ("trt.TensorFormat.LINEAR", "trt.TensorFormat.NCHW"),
    "a name of before 11": ("engine.device_memory_size_v2", "engine.device_memory_size"),
    "a name of before 10": ("engine.num_io_tensors", "engine.num_bindings"),
    "a method as a property": ("engine.get_tensor_name(at)", "engine.get_tensor_name[at]"),
    "a property as a method": ("engine.num_io_tensors)", "engine.num_io_tensors())"),
    "the names that the bindings mix up": (
        "get_tensor_profile_values(index, spec.name)",
        "get_tensor_profile_values(profile_index=index, name=spec.name)",
    ),
    "a shape that is taken for a tuple": ("tuple(engine.get_tensor_shape(name)),", "engine.get_tensor_shape(name),"),
    "an allocator that is not one": ("set_output_allocator(name, allocator)", "set_output_allocator(name, output)"),
    "a context that may be None": ("        if context is None:\n", "        if False:\n"),
    "an assignment to what is read only": ("        self.name = engine.name", "        engine.name = self.name = ''"),
    "an allocator without its base": ("_Allocator(trt.IOutputAllocator)", "_Allocator(trt.OutputAllocator)"),
    "a format of a profile by name": ("get_tensor_format(name, profile)", "get_tensor_format(name, str(profile))"),
}


@pytest.fixture(scope="module", params=["10.15", "11.0", "11.4", "rtx"])
def complaints(request: pytest.FixtureRequest, place: Path) -> list[str]:
    """Those about what is written against a version, and about ``engine.py`` without a mistake and with each."""
    text = ENGINE.read_text()
    planted = {"no_mistake": text}
    for number, (what, (right, wrong)) in enumerate(MISTAKES.items()):
        assert right in text, what
        planted[f"mistake_{number}"] = text.replace(right, wrong, 1)
    for name, content in planted.items():
        (place / f"{name}.py").write_text(content)
    files = [path for path in _users() if request.param == "rtx" or not str(path).endswith(ONLY_RTX)]
    assert ENGINE in files
    return _mypy(place, request.param, *files, *(place / f"{name}.py" for name in planted))


def test_everything_written_against_tensorrt_fits(complaints: list[str]) -> None:
    assert [one for one in complaints if not one.startswith("mistake_")] == []


def test_planted_mistakes_are_all_caught(complaints: list[str]) -> None:
    caught = {one.partition(".py:")[0] for one in complaints}
    assert [what for number, what in enumerate(MISTAKES) if f"mistake_{number}" not in caught] == []


def test_the_bindings_that_are_installed_have_what_the_list_states() -> None:
    """So that the list itself is checked where TensorRT for RTX is installed."""
    name = module_name(Flavour.RTX)
    if name is None:
        pytest.skip("TensorRT for RTX is not installed (x86-64 only)")
    module = importlib.import_module(name)
    surface = _surface("rtx")
    used = {"Builder", "IBuilderConfig", "ICudaEngine", "IExecutionContext", "IRuntimeCache", "OnnxParser", "Runtime"}
    for name in sorted(used):
        for line in surface.classes[name][1]:
            found = re.match(r"(?:@staticmethod )?(?:def|prop) (\w+)", line)
            assert found is not None
            if found[1] != "__init__":
                assert hasattr(getattr(module, name), found[1]), f"{name}.{found[1]}"
