"""The imitations have the names, values and parameters of what they stand for."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engines.api.surface import FILES, Surface

PACKAGES = Path(__file__).parent / "packages"
OWN = {"live", "fail_for_good", "stream_of", "current"}
"""Of the imitation of CUDA: what its tests and that of TensorRT ask."""


def _tree(name: str) -> ast.Module:
    return ast.parse((PACKAGES / name).read_text())


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in function.args.args if one.arg != "self"]


def test_cuda_has_every_function_with_these_parameters() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    functions = [one for one in _tree("cuda/bindings/runtime.py").body if isinstance(one, ast.FunctionDef)]
    compared = 0
    for one in functions:
        if one.name.startswith("_") or one.name in OWN:
            continue
        head = str(getattr(runtime, one.name).__doc__).strip().splitlines()[0]
        given = re.fullmatch(rf"{one.name}\((.*)\)", head)
        assert given is not None, head
        names = [part.split(":")[0].split()[-1] for part in given[1].split(",") if part.strip()]
        assert names == _parameters(one), one.name
        compared += 1
    assert compared > 20


def test_cuda_has_every_value() -> None:
    runtime: Any = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    for one in _tree("cuda/bindings/runtime.py").body:
        match one:
            case ast.ClassDef(name=name, bases=[ast.Attribute(attr="IntEnum")], body=body):
                for member in body:
                    assert isinstance(member, ast.Assign)
                    assert isinstance(member.targets[0], ast.Name)
                    value = ast.literal_eval(member.value)
                    assert int(getattr(getattr(runtime, name), member.targets[0].id)) == value
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(number))) if name[:4] == "cuda":
                assert getattr(runtime, name) == number


def test_the_errors_that_last_are_known_to_cuda() -> None:
    runtime: Any = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    calls = importlib.import_module("repoagent.engines.cuda.device")
    assert set(runtime.cudaError_t.__members__) >= calls.LASTING


def test_tensorrt_has_every_method_with_these_parameters() -> None:
    surface = Surface().read(FILES / "tensorrt-11.4.txt", (11, 4))
    compared = 0
    for one in _tree("tensorrt/__init__.py").body:
        if not isinstance(one, ast.ClassDef) or one.name.startswith("_") or one.name in ("Dims", "IOutputAllocator"):
            continue
        if one.name in surface.enums:
            continue
        listed = "\n".join(surface.classes[one.name][1])
        for member in one.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                found = [
                    [part.split(":")[0].strip() for part in given.split(",")[1:]]
                    for given in re.findall(rf"def {member.name}\((.*)\) ->", listed)
                ]
                wanted = _parameters(member)
                # An overload may have fewer; those with a default may be left out.
                assert any(names == wanted or not wanted for names in found), f"{one.name}.{member.name}: {found}"
                compared += 1
            elif isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
                name = member.targets[0].id
                assert name.startswith("_") or f"prop {name}:" in listed
                compared += 1
    assert compared > 20


def test_every_kind_of_element_has_its_place() -> None:
    from repoagent.engines.protocol import ElementType

    surface = Surface().read(FILES / "tensorrt-11.4.txt", (11, 4))
    assert {one.split()[0] for one in surface.enums["DataType"]} == set(ElementType.__members__)
