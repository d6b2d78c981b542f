"""Which TensorRT is found, and what is said where there is none; every state is made with packages of the test's."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.engines.flavours import CHOICE, Flavour, import_tensorrt, installed
from repoagent.errors import InvalidArgumentError, UnsupportedError


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that is all that can be imported beside the standard library; TensorRT is not in it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(p for p in sys.path if "site-packages" not in p)])
    monkeypatch.delenv(CHOICE, raising=False)
    for name in _imported():
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in _imported():  # those of the test; then the real ones come back
        del sys.modules[name]


def _imported() -> list[str]:
    return [name for name in sys.modules if name.partition("_")[0].partition(".")[0] == "tensorrt"]


def _package(packages: Path, name: str, code: str = "__version__ = '11.1.0'") -> None:
    (packages / name).mkdir()
    (packages / name / "__init__.py").write_text(code)


def test_without_any_the_refusal_names_what_to_install(packages: Path) -> None:
    assert installed() == []
    with pytest.raises(UnsupportedError, match=r"neither TensorRT nor TensorRT for RTX is installed; from a checkout"):
        import_tensorrt()


def test_tensorrt_goes_before_tensorrt_for_rtx(packages: Path) -> None:
    _package(packages, "tensorrt")
    _package(packages, "tensorrt_rtx")
    assert installed() == [Flavour.TENSORRT, Flavour.RTX]
    assert import_tensorrt()[0] is Flavour.TENSORRT


def test_the_operator_chooses_a_flavour(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(packages, "tensorrt")
    _package(packages, "tensorrt_rtx")
    monkeypatch.setenv(CHOICE, "tensorrt_rtx")
    assert installed() == [Flavour.RTX]
    monkeypatch.setenv(CHOICE, "cudnn")
    with pytest.raises(InvalidArgumentError, match="REPOAGENT_TENSORRT must be one of tensorrt, tensorrt_rtx"):
        installed()


def test_bindings_without_the_small_package_are_found(packages: Path) -> None:
    _package(packages, "tensorrt_rtx_bindings")
    flavour, module = import_tensorrt()
    assert (flavour, module.__name__) == (Flavour.RTX, "tensorrt_rtx_bindings")


def test_bindings_whose_libraries_are_missing_give_way_to_the_other_flavour(packages: Path) -> None:
    _package(packages, "tensorrt", "raise ImportError('libnvonnxparser.so.11: cannot open shared object file')")
    _package(packages, "tensorrt_rtx")
    assert import_tensorrt()[0] is Flavour.RTX


def test_a_missing_library_is_named(packages: Path) -> None:
    _package(packages, "tensorrt", "raise ImportError('libnvonnxparser.so.11: cannot open shared object file')")
    with pytest.raises(UnsupportedError, match=r"TensorRT is installed, but cannot be imported: libnvonnxparser\.so"):
        import_tensorrt()


def test_a_package_that_breaks_while_it_is_imported_is_a_refusal(packages: Path) -> None:
    _package(packages, "tensorrt", "raise RuntimeError('boom')")
    with pytest.raises(UnsupportedError, match="TensorRT failed while it was imported: RuntimeError: boom"):
        import_tensorrt()


def test_looking_imports_nothing_of_tensorrt() -> None:
    code = "import sys; from repoagent.engines.flavours import installed; installed(); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "tensorrt" not in done.stdout.replace("repoagent.engines", "")
