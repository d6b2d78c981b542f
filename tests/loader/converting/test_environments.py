"""Environments of converters, and sources that are code: twenty hostile pickles, with and without the jail."""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repoagent.beneath import jail
from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.loader.converting import build_process
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.loader.converting.result_files import refuse_foreign
from repoagent.testing import AgentHarness
from tests.loader.converting.conftest import Converting
from tests.loader.converting.samples import CONVERTERS

pytestmark = pytest.mark.slow
needs_jail = pytest.mark.skipif(bool(jail.problem()), reason=f"no jail here: {jail.problem()}")

ROOT = os.geteuid() == 0
BEFORE = """
import ctypes, fcntl, os, resource, signal, socket, subprocess, sys
from pathlib import Path
outside = Path({outside!r})
secret = outside / "secret"
parent = os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def call(*arguments):
    if libc.syscall(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""
HOSTILE = {
    "reads a password file": "Path('/etc/passwd').read_text()",
    "reads another model": "secret.read_text()",
    "reads the server's environment": "Path(f'/proc/{parent}/environ').read_bytes()",
    "has the server's variables": "os.environ['OF_THE_SERVER']",
    "writes a file": "(outside / 'new').write_text('x')",
    "changes another model": "secret.write_text('x')",
    "removes another model": "secret.unlink()",
    "cuts another model off": "call(X86 and 76 or 45, bytes(secret), ctypes.c_long(1))",
    "changes rights": "secret.chmod(0o777)",
    "changes times": "os.utime(secret, (1, 1))",
    "plants code for the next start": "Path({code!r}, 'planted.py').write_text('x')",
    "runs a shell": "subprocess.run(['/bin/sh', '-c', f'echo x > {outside}/new'], check=True)",
    "runs a shell by system": "os.system(f'echo x > {outside}/new') and os.abort()",
    "leaves a process behind": "os.fork() or (os.setsid(), os._exit(0))",
    "calls home": "socket.create_connection(('127.0.0.1', {port})).close()",
    "calls home by UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "signals the server": "os.kill(parent, signal.SIGURG)",
    "has the kernel signal the server": "fcntl.fcntl(1, 8, parent)",
    "opens the server's memory": "open(f'/proc/{parent}/mem', 'r+b').close()",
    "reads the server's memory": "call(X86 and 310 or 270, parent, (ctypes.c_ulong * 2)(0, 0), 1, 0, 0, 0)",
    "shares memory with others": "call(X86 and 29 or 194, 0, ctypes.c_size_t(4096), 0o1600)",
    # Private memory without a reserve: where nothing refuses it, none of it is touched.
    "takes all memory": "call(X86 and 9 or 222, 0, 9 << 30, 3, 0x4022, -1, 0)",
    "fills the disk": "os.ftruncate(os.open('big', os.O_CREAT | os.O_RDWR), 3 << 30)",
    "leaves a pipe": "os.mkfifo('pipe')",
    "raises its limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 90))",
    # That the capabilities of root are gone is all that denies these.
    **({"becomes another user": "os.setresuid(1, -1, -1)", "enters a group": "os.setgroups([1])"} if ROOT else {}),
}


class Hostile:
    """Runs a text of Python when it is opened."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> Any:
        return eval, (f"(lambda space: (exec({self.code!r}, space), 'it did')[1])({{}})",)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (outside / "secret").chmod(0o644)
    return outside


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def converting(directory: Path, settings: ConverterSettings) -> Iterator[Converting]:
    with AgentHarness(directory / "harness", converters=CONVERTERS, converter_settings=settings) as harness:
        yield Converting(directory, harness)


@pytest.fixture
def allowed(tmp_path: Path) -> Iterator[Converting]:
    yield from converting(tmp_path, ConverterSettings(allow_code=True))


def open_pickle(allowed: Converting, to: str, code: str) -> Any:
    root = allowed.prepare(to)
    (root / "1" / "model.txt").write_bytes(pickle.dumps(Hostile(code)))
    return allowed.harness.run(root)


def state(outside: Path) -> list[Any]:
    return [(path.name, path.stat().st_mode, path.stat().st_mtime, path.read_bytes()) for path in outside.iterdir()]


@needs_jail
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_changes_nothing_outside_and_does_without_the_jail(
    name: str, allowed: Converting, outside: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SERVER", "secret")
    code_place = outside.parent / "code"
    code_place.mkdir()
    monkeypatch.syspath_prepend(str(code_place))
    signals: list[int] = []
    former = signal.signal(signal.SIGURG, lambda number, _: signals.append(number))
    attack = HOSTILE[name].replace("{port}", str(port)).replace("{code!r}", repr(str(code_place)))
    attack = re.sub(r"\{(outside|parent)\}", r"{\1}", attack)
    code = BEFORE.format(outside=str(outside)) + attack
    before = state(outside)
    try:
        jailed = open_pickle(allowed, "pickled", code)
        assert jailed.error is not None
        assert state(outside) == before
        assert not list(code_place.iterdir())
        assert not signals
        assert jailed.left == ()
        free = open_pickle(allowed, "unjailed", code)
        assert free.error is None
        assert free.files["1/model.upper"] == b"it did"
    finally:
        signal.signal(signal.SIGURG, former)


@needs_jail
def test_what_comes_before_each_attack_is_not_what_the_jail_refuses(allowed: Converting, outside: Path) -> None:
    prepared = open_pickle(allowed, "pickled", BEFORE.format(outside=str(outside)))
    assert prepared.error is None
    assert prepared.files["1/model.upper"] == b"it did"


@needs_jail
def test_a_harmless_pickle_is_opened(allowed: Converting) -> None:
    root = allowed.prepare("pickled")
    (root / "1" / "model.txt").write_bytes(pickle.dumps({"weights": [1, 2]}))
    assert allowed.harness.run(root).files["1/model.upper"] == b"{'weights': [1, 2]}"


@needs_jail
def test_more_files_than_the_result_are_refused(allowed: Converting) -> None:
    outcome = open_pickle(
        allowed, "pickled", "import sys; open(sys._getframe(4).f_locals['job'].target / 'more', 'w').close()"
    )
    assert "made model.upper, more, but not model.upper alone" in str(outcome.error)


@needs_jail
def test_other_files_beside_the_source_are_not_read(allowed: Converting) -> None:
    """With ``repoagent convert`` they may be anything that the user has."""
    for to, text in (("pickled", "Permission denied"), ("unjailed", "")):
        root = allowed.prepare(to)
        (root / "1" / "beside").write_text("secret")
        code = "import sys; (sys._getframe(4).f_locals['job'].source / 'beside').read_text()"
        (root / "1" / "model.txt").write_bytes(pickle.dumps(Hostile(code)))
        assert text in str(allowed.harness.run(root).error or "")
        assert bool(text) == bool(allowed.harness.run(root).error)


@needs_jail
def test_threads_without_end_are_ended(allowed: Converting, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take room of the kernel, and numbers of processes, that no limit of memory counts."""
    monkeypatch.setattr(build_process, "_MOST_THREADS", 20)
    code = (
        "import threading; threading.stack_size(1 << 16); end = threading.Event()\n"
        "for _ in range(40): threading.Thread(target=end.wait, daemon=True).start()\n"
        "end.wait()"
    )
    assert "it has more than 20 threads" in str(open_pickle(allowed, "pickled", code).error)


def test_a_source_that_is_code_needs_the_operators_permission(converting: Converting) -> None:
    error = str(converting.run("pickled").error)
    assert "models of 'text' run code when they are opened" in error
    assert "--allow-code-conversion" in error


def test_a_refusal_has_all_that_is_to_be_done(converting: Converting) -> None:
    error = str(converting.run("lacking").error)
    assert re.search(
        "which the operator allows with --allow-code-conversion; the conversion from 'text' needs shouter; install .* "
        "--converter-environment text=DIR; or shout where the text is written$",
        error,
    ), error


def test_a_kernel_without_a_jail_refuses_such_a_source(allowed: Converting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "landlock_version", lambda: 0)
    assert "needs a jail: the kernel has no Landlock" in str(allowed.run("pickled").error)
    assert allowed.run("upper").error is None


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    directory = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    install(directory, "shouter", "1.5")
    return directory


def install(environment: Path, name: str, version: str) -> None:
    (site,) = environment.glob("lib/python3*/site-packages")
    for old in site.glob(f"{name}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    (site / f"{name}-{version}.dist-info").mkdir()
    (site / f"{name}-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


def test_a_converter_runs_in_the_environment_that_the_operator_names(environment: Path, tmp_path: Path) -> None:
    settings = ConverterSettings.parse([f"text={environment}"], False)
    for one in converting(tmp_path, settings):
        outcome = one.run("foreign")
        seen = json.loads(outcome.files["1/model.upper"])
        assert seen["prefix"] == str(environment)
        assert not seen["numpy"], "it sees packages of the server"
        assert not [path for path in seen["path"] if path in sys.path and "site-packages" in path]
        assert "shouter 1.5" in " ".join(outcome.report.lines())


@needs_jail
def test_a_jailed_converter_imports_the_rest_of_its_package(environment: Path, tmp_path: Path) -> None:
    """From the environment: the directory of its own module is not all that it may read."""
    settings = ConverterSettings.parse([f"text={environment}"], False)
    for one in converting(tmp_path, settings):
        outcome = one.run("reaching")
        assert outcome.error is None
        assert outcome.files["1/model.upper"] in (b"True", b"False")


def test_another_version_in_the_environment_builds_again(environment: Path, tmp_path: Path) -> None:
    settings = ConverterSettings.parse([f"text={environment}"], False)
    for one in converting(tmp_path, settings):
        one.run("foreign")
        one.run("foreign")
        install(environment, "shouter", "1.6")
        one.run("foreign")
        install(environment, "anything", "1.0")
        one.run("foreign")
        assert [result.built for result in one.results] == [True, False, True, True]


def test_a_package_that_the_environment_lacks_is_named_with_what_to_do(
    environment: Path, tmp_path: Path, converting: Converting
) -> None:
    assert (
        "the conversion from 'text' needs shouter; install them in an environment of their own, "
        "and name it: --converter-environment text=DIR"
    ) in str(converting.run("foreign").error)
    install(environment, "shouter", "2")
    os.rename(next(environment.glob("lib/*/site-packages/shouter-2.dist-info")), tmp_path / "gone")
    settings = ConverterSettings.parse([f"text={environment}"], False)
    with AgentHarness(tmp_path / "other", converters=CONVERTERS, converter_settings=settings) as harness:
        error = str(Converting(tmp_path, harness).run("foreign").error)
    assert f"needs shouter; {environment}/bin/pip install shouter" in error


@pytest.mark.parametrize("text", ["sklearn", "=x", "sklearn=", "sklearn=/nowhere"])
def test_what_is_no_environment_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--converter-environment"):
        ConverterSettings.parse([text], False)


@pytest.mark.parametrize("place", [".", "bin", "lib/python3.11/site-packages"])
def test_an_environment_that_everyone_may_change_is_refused(place: str, tmp_path: Path) -> None:
    for name in ("bin", "lib/python3.11/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin" / "python").touch()
    assert ConverterSettings.parse([f"sklearn={tmp_path}"], False).environments
    (tmp_path / place).chmod(0o777)
    with pytest.raises(InvalidArgumentError, match="everyone may write to"):
        ConverterSettings.parse([f"sklearn={tmp_path}"], False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("domain", "the result has operators of others: 'com.vendor'"),
        ("location", "the result names other files: '/etc/passwd'"),
    ],
)
def test_what_foreign_code_makes_names_nothing_outside_of_itself(change: str, text: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"], domain="com.vendor" if change == "domain" else "")
    weight = onnx.helper.make_tensor("w", 1, [1], [1.0])
    if change == "location":
        weight.ClearField("float_data")
        weight.data_location = 1
        weight.external_data.add(key="location", value="/etc/passwd")
    tensors = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", tensors[:1], tensors[1:], [weight])
    (tmp_path / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(UnsafePathError, match=re.escape(text)):
        refuse_foreign(tmp_path, "model.onnx", "onnx", "1/m.pkl")
    empty = onnx.helper.make_graph([], "g", [], [])
    (tmp_path / "model.onnx").write_bytes(onnx.helper.make_model(empty).SerializeToString())
    refuse_foreign(tmp_path, "model.onnx", "onnx", "1/m.pkl")
