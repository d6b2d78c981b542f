"""``repoagent doctor``: what this machine lacks, with what to do about it; and ``repoagent version``."""

import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import click

from repoagent.installing import install_hint

_SHOWN: Final = (
    "repoagent-core",
    "repoagent-server",
    "onnxruntime",
    "tensorrt",
    "numpy",
    "protobuf",
    "fsspec",
    "s3fs",
    "pluggy",
)


@click.command("version")
def print_version() -> None:
    """Print the versions of repoagent and of the libraries that it uses."""
    for name in _SHOWN:
        click.echo(f"{name} {_version(name) or '(not installed)'}")


_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only looked at
_PROC: Final = Path("/proc")
_CGROUP_MEMORY: Final = Path("/sys/fs/cgroup/memory.max")
_FEW_FILES: Final = 4096
_LITTLE_SHARED_MEMORY: Final = 1 << 30
_EXTRA: Final = re.compile(r"^([A-Za-z0-9._-]++)[^;]*+;.*extra == ['\"]([a-z0-9-]+)['\"]")
_NOT_SHOWN: Final = frozenset({"dev", "testing"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    subject: str
    found: str
    remedy: str = ""
    """What to do about it; empty if there is nothing to do."""


def examine() -> list[Finding]:
    """Every finding, in the order in which they are printed."""
    return [finding for check in _CHECKS for finding in _guarded(check)]


def _guarded(check: "Check") -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # A machine that is odd enough is what this is for.
        subject = check.__name__.removeprefix("_").replace("_", " ")
        return [Finding(subject, f"cannot be determined: {type(error).__name__}: {error}", "report this as a fault")]


def _versions() -> Iterator[Finding]:
    yield Finding("Python", f"{sys.version.split()[0]}, {sys.executable or 'embedded'}")
    for name in ("repoagent-core", "repoagent-server", "numpy", "onnxruntime"):
        found = _version(name)
        yield Finding(name, found or "not installed", "" if found else install_hint(name))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _providers() -> Iterator[Finding]:
    import onnxruntime

    found = onnxruntime.get_available_providers()
    gpu = [one for one in found if one not in ("CPUExecutionProvider", "AzureExecutionProvider")]
    remedy = "" if gpu else "for ONNX models on a GPU install onnxruntime-gpu in place of onnxruntime"
    yield Finding("ONNX Runtime providers", ", ".join(found), remedy)


def _tensorrt() -> Iterator[Finding]:
    from repoagent.engines.probe import probe

    found = probe()
    name = f"{found.flavour} {found.version}".strip()
    yield Finding("TensorRT", f"{name or 'not installed'}, {'usable' if found.usable else 'not usable'}", found.problem)
    for gpu in found.gpus:
        major, minor = gpu.capability
        yield Finding(
            f"GPU {gpu.index}", f"{gpu.name}, {gpu.memory_bytes >> 20} MiB, compute capability {major}.{minor}"
        )
    if not found.gpus:
        yield Finding("GPUs", "none that CUDA lists", "" if found.problem else "check that the driver is loaded")


def _extras() -> Iterator[Finding]:
    parts: dict[str, list[str]] = {}
    for requirement in requires("repoagent-core") or ():
        match = _EXTRA.match(requirement)
        if match is not None and match[2] not in _NOT_SHOWN:
            parts.setdefault(match[2], []).append(match[1])
    for extra, names in sorted(parts.items()):
        missing = [name for name in names if not _version(name)]
        remedy = f"if you need it, {install_hint('repoagent-core', extra)}" if missing else ""
        yield Finding(f"extra {extra}", f"lacks {', '.join(missing)}" if missing else "installed", remedy)


def _memory_filesystem() -> Iterator[Finding]:
    if not _SHARED_MEMORY.is_dir():
        yield Finding("tmpfs", f"{_SHARED_MEMORY} is missing", "name one with --confidential-directory")
        return
    usage = shutil.disk_usage(_SHARED_MEMORY)
    small = usage.total < _LITTLE_SHARED_MEMORY
    remedy = "decrypted models lie there: enlarge it (docker run --shm-size=8g)" if small else ""
    yield Finding("tmpfs", f"{_SHARED_MEMORY}, {usage.free >> 20} of {usage.total >> 20} MiB free", remedy)


def _swap() -> Iterator[Finding]:
    from repoagent.storage.workspaces.workspace import swap_devices

    devices = swap_devices(_PROC)
    remedy = "confidential models are refused: turn swap off, or start the server with --allow-swap" if devices else ""
    yield Finding("swap", f"on: {', '.join(devices)}" if devices else "off", remedy)


def _limits() -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = f"raise it for many connections: ulimit -n {min(most, 65536)}" if 0 <= files < _FEW_FILES else ""
    yield Finding("open files", str(files), remedy)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield Finding("locked memory", "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10} KiB")
    yield Finding("processors", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}")
    allowed = _CGROUP_MEMORY.read_text().strip() if _CGROUP_MEMORY.exists() else "max"
    yield Finding("memory of the container", "unlimited" if allowed == "max" else f"{int(allowed) >> 20} MiB")


def _jail() -> Iterator[Finding]:
    from repoagent.beneath import jail

    problem = jail.problem()
    found = problem or f"Landlock {jail.landlock_version()} and filters of system calls"
    yield Finding("jail for foreign code", found, "models that are code (pickles) are not converted" if problem else "")


def _workers() -> Iterator[Finding]:
    from repoagent.beneath import jail

    version = jail.landlock_version()
    ways = "memory, environment and signals" if version >= 6 else "memory and environment"
    apart = f"Landlock {version} keeps them from the keeper's {ways}" if version else "no Landlock"
    root = os.geteuid() == 0
    user = "--worker-user can give them a user" if root else f"they are of user {os.geteuid()}, as the keeper is"
    remedy = "" if version else "--worker-user keeps them from it" if root else "start as root, with --worker-user"
    yield Finding("workers of --processes", f"{apart}; {user}", remedy)


Check = Callable[[], Iterator[Finding]]
_CHECKS: Final[tuple[Check, ...]] = (
    _versions,
    _providers,
    _tensorrt,
    _extras,
    _memory_filesystem,
    _swap,
    _limits,
    _jail,
    _workers,
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Report what the server can use on this machine, and how to close each gap.

    A gap is not a fault: a server without a GPU serves everything but TensorRT plans. The exit status is 0.
    """
    findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "gap" if finding.remedy else "ok "
        click.echo(f"{mark}  {finding.subject:<{width}}  {finding.found}")
        if finding.remedy:
            click.echo(f"     {'':<{width}}  -> {finding.remedy}")
