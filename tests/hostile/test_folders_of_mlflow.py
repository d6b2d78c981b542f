"""An MLmodel, and the lines of a process that converts, as an attacker writes them."""

from pathlib import Path

import pytest

from repoagent.api import ConversionSource
from repoagent.converters.tables import mlflow
from repoagent.errors import InvalidArgumentError
from repoagent.loader.converting.messages import parse


def test_a_text_over_many_lines_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was read so far was read again with each line: twenty seconds for a megabyte."""
    seen = [0]
    real = mlflow._ends

    def ends(piece: str, *more: str) -> bool:
        seen[0] += len(piece)
        return real(piece, *more)

    monkeypatch.setattr(mlflow, "_ends", ends)
    text = "flavors:\n  x: 'a\n" + "b\n" * 1000 + "c'\n"
    assert mlflow._read(text)["flavors"]["x"] == "a " + "b " * 1000 + "c"
    assert seen[0] <= len(text)


def test_a_mapping_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors:\n  xgboost:\n    data:\n      x: y\n")
    with pytest.raises(InvalidArgumentError, match="its model file has no name"):
        mlflow.MlflowConverter().redirect(ConversionSource(tmp_path, "MLmodel", "1/MLmodel"), {})


@pytest.mark.parametrize("done", ["1e999", "-1", "9" * 4000, "NaN"])
def test_progress_without_end_is_no_progress(done: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse(f'{{"progress": [{done}, null, ""]}}'.encode())
