import pytest
from repoagent_server.handlers.inference import check_version

from repoagent.errors import InvalidArgumentError


@pytest.mark.parametrize("version", ["", "1", "007", "0" * 5000 + "1", str(2**63 - 1)])
def test_a_version_is_a_number(version: str) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize("version", ["x", "1.0", "٣", " 1", str(2**63), "1" * 5000])
def test_anything_else_is_refused(version: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(details: stol\)"):
        check_version(version)
