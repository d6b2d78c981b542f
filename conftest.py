"""What holds for every test of this tree: how Hypothesis runs, and what the garbage collector looks at.

Hypothesis takes the same examples each time, and no example has to be quick; ``HYPOTHESIS_PROFILE=explore`` looks for
new examples instead.
"""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Until every test has been imported, nothing but the syntax trees of pytest is garbage, and those have no cycles.
gc.disable()


def pytest_collection_finish() -> None:
    """What is there now stays. Tests that ask for a collection of garbage do so hundreds of times: it is left out."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logs may hold halves of characters, which a process of pytest-xdist cannot send to the first one."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
