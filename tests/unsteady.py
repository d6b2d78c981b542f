"""What fails beside other tests runs once more, alone: the plugin of ``make test`` that tells a fault from chance.

    python -m pytest -n 2 -p tests.unsteady

What passes then is UNSTEADY: it is printed with its first failure, and fails the run from the fourth on. What fails
again has failed. Either way pytest's own last line has the numbers. A run without workers is believed at once, and so
is one in which a worker died: ``make test`` starts no other, because xdist loses the place of one that starts late.
"""

import subprocess
import sys
from collections.abc import Generator
from typing import Any, Final

import pytest

ALLOWED: Final = 3
"""So many unsteady tests let a run pass."""
MANY: Final = 30
"""More failures than these are no chance, and are believed at once."""

_DIED: Final = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Print how a worker died: the run ends with what the others have begun, and says in which test it was."""
    if error is None:
        return
    node.config.stash[_DIED] = True
    terminal: pytest.TerminalReporter | None = node.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.write_line(f"\n{node.gateway.id} died: its process ended with status {node.gateway._io.wait()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """When all have run, and before pytest counts: take what was chance from among the failures."""
    result = yield
    terminal: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not session.config.pluginmanager.has_plugin("dsession"):
        return result
    if session.config.stash.get(_DIED, False):
        return result
    reports = [one for kind in ("failed", "error") for one in terminal.stats.get(kind, ()) if hasattr(one, "when")]
    failed = {one.nodeid: one for one in reversed(reports)}
    if not 0 < len(failed) <= MANY:
        return result
    terminal.write_line(f"\nonce more, alone: {len(failed)} that failed beside others")
    unsteady = [one for one in failed.values() if _passes_alone(session, one.nodeid)]
    chance = [one for one in reports if one.nodeid in {each.nodeid for each in unsteady}]
    for kind in ("failed", "error"):
        terminal.stats[kind] = [one for one in terminal.stats.pop(kind, ()) if one not in chance]
    terminal.stats["unsteady"] = unsteady
    if len(unsteady) <= ALLOWED:
        session.testsfailed -= len(chance)
    return result


def _passes_alone(session: pytest.Session, name: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", name]
    alone = subprocess.run(command, cwd=session.config.rootpath, capture_output=True, text=True)
    return alone.returncode == 0 and alone.stdout.splitlines()[-1].startswith("1 passed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each unsteady test with its first failure."""
    unsteady: list[pytest.TestReport] = terminalreporter.stats.get("unsteady", [])
    for report in unsteady:
        terminalreporter.section(f"UNSTEADY {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
    for report in unsteady:
        terminalreporter.write_line(f"UNSTEADY {report.nodeid}: failed beside others, passed alone")
    if len(unsteady) > ALLOWED:
        terminalreporter.write_line(f"{len(unsteady)} tests are unsteady, {ALLOWED} may be: the run fails")
