"""Terms: what they allow, and what each refuses."""

from datetime import UTC, datetime, timedelta

import pytest
from repoagent_license.terms import Terms

from repoagent.api import InvalidArgumentError

BEGIN = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)
DURING = datetime(2027, 6, 1, tzinfo=UTC)
TERMS = Terms(("fraud-*", "credit"), BEGIN, END)
BOUND = Terms(("*",), BEGIN, END, ("sha256:1", "sha256:2"), "sha256:3")


@pytest.mark.parametrize("model", ["fraud-eu", "credit"])
def test_a_license_holds_for_the_models_it_names(model: str) -> None:
    TERMS.check(model, DURING)


@pytest.mark.parametrize("model", ["fraud", "Credit", "other"])
def test_other_models_are_refused(model: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"the license is not for the model '{model}'"):
        TERMS.check(model, DURING)


def test_a_license_that_has_not_begun_is_refused() -> None:
    TERMS.check("credit", BEGIN)
    with pytest.raises(InvalidArgumentError, match="the license begins only at 2027-01-01"):
        TERMS.check("credit", BEGIN - timedelta(seconds=1))


def test_other_machines_are_refused() -> None:
    BOUND.check_host("sha256:2")
    with pytest.raises(InvalidArgumentError, match="for 2 other machines; this one is sha256:3"):
        BOUND.check_host("sha256:3")


def test_other_content_is_refused() -> None:
    BOUND.check_content("sha256:3")
    with pytest.raises(InvalidArgumentError, match="for other content: expected sha256:3, the model has sha256:1"):
        BOUND.check_content("sha256:1")


def test_terms_without_machines_and_content_allow_any() -> None:
    TERMS.check_host("sha256:1")
    TERMS.check_content("sha256:1")
