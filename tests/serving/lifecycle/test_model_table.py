from typing import Any

import pytest

from repoagent.audit import NO_AUDIT
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError, UnavailableError
from repoagent.serving.ensembles.plan import Dependencies
from repoagent.serving.lifecycle.load_attempt import LoadRequest
from repoagent.serving.lifecycle.load_pool import LoadPool, SerialQueue
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.lifecycle.model_table import ModelTable


class Nowhere:
    """A context in which no model is found."""

    audit = NO_AUDIT

    builder: Any = None
    retirements: Any = None
    dependencies = Dependencies(lambda _: frozenset())

    def source(self, name: str, order: LoadRequest) -> Any:
        raise NotFoundError("model not found in any model repository")

    def changed(self, model: str) -> None:
        raise AssertionError("nothing can have been loaded")


@pytest.fixture
def table() -> Any:
    context: Any = Nowhere()
    pool = LoadPool(1)
    yield ModelTable(lambda name: ModelSlot(name, context, SerialQueue(pool)))
    pool.close(wait=True)


def test_the_name_of_no_model_is_forgotten_after_its_load(table: ModelTable) -> None:
    with pytest.raises(InternalError, match="failed to load 'x', failed to poll"):
        table.load("x", LoadRequest()).result(60)
    assert table.get("x") is not None
    table.forget_if_empty("x")
    assert table.get("x") is None
    table.forget_if_empty("x")


@pytest.mark.parametrize("version", ["1.0", "+1", "x", "٣", "1 ", "1" * 5000])
def test_a_version_that_is_no_number_is_refused(table: ModelTable, version: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        table.find("m", version)
    assert str(caught.value) == f"failed to get model version from specified version string '{version}'"


def test_a_closed_table_takes_no_loads(table: ModelTable) -> None:
    table.close()
    with pytest.raises(UnavailableError, match="the server is stopping"):
        table.load("m", LoadRequest())
