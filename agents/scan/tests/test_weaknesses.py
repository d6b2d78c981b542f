"""What the agent says about parameters of a policy."""

import pytest
from repoagent_scan.agent import ScanAgent

from repoagent.api import Parameters


def test_a_strict_scan_has_none() -> None:
    assert ScanAgent.weaknesses(Parameters([("modelaudit", "required")])) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("allow", "pickle"), ("allow_file", "*"), ("allow_operator", "com.vendor"), ("modelaudit", "auto")],
)
def test_each_exception_is_one(name: str, value: str) -> None:
    others = [] if name == "modelaudit" else [("modelaudit", "off")]
    (sentence,) = ScanAgent.weaknesses(Parameters([(name, value), *others]))
    assert value in sentence or name == "modelaudit"
