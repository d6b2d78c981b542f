"""What SageMaker runs: ``serve``, with variables in place of arguments."""

from pathlib import Path
from typing import Any

import pytest
from repoagent_server.program import sagemaker
from repoagent_server.program.options import ServeOptions

from repoagent.errors import InvalidArgumentError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "digits" / "1").mkdir(parents=True)
    (tmp_path / "README.md").touch()
    return tmp_path


def test_the_only_model_is_served_on_sagemakers_port_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch, ran: list[ServeOptions]
) -> None:
    monkeypatch.setattr(sagemaker, "REPOSITORY", repository)
    monkeypatch.setattr("sys.argv", ["serve", "--log-verbose=2"])
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", "9090")
    monkeypatch.setenv("SAGEMAKER_SAFE_PORT_RANGE", "9000-9100")
    monkeypatch.setenv(sagemaker.MODEL, "")
    with pytest.raises(SystemExit, match="0"):
        sagemaker.main()
    (options,) = ran
    assert options.sagemaker is not None
    assert (options.sagemaker.port, options.sagemaker.model) == (9090, "digits")
    assert (options.model_repository, options.load_model) == ((str(repository),), ("digits",))
    assert (options.http_address, options.log.verbose) == ("0.0.0.0", 2)
    assert (options.allow_http, options.allow_grpc, options.allow_metrics) == (False, False, False)


def test_a_model_that_is_named_is_taken_among_several(repository: Path) -> None:
    (repository / "other").mkdir()
    assert sagemaker.model_of({sagemaker.MODEL: "other"}, repository) == "other"
    with pytest.raises(InvalidArgumentError, match=r"has 2 models; name one with SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"):
        sagemaker.model_of({}, repository)


def test_what_cannot_be_served_is_refused_with_the_reason(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"endpoints for several models .* are not supported"):
        sagemaker.model_of({"SAGEMAKER_MULTI_MODEL": "true"}, repository)
    with pytest.raises(InvalidArgumentError, match=r"the model 'x', which .* names, is not in"):
        sagemaker.model_of({sagemaker.MODEL: "x"}, repository)
    with pytest.raises(InvalidArgumentError, match=r"the model '../digits', which .* names, is not in"):
        sagemaker.model_of({sagemaker.MODEL: "../digits"}, repository)
    with pytest.raises(InvalidArgumentError, match="has 0 models"):
        sagemaker.model_of({}, tmp_path / "missing")
    (repository / "config.pbtxt").touch()
    with pytest.raises(InvalidArgumentError, match="is a model; the archive must have"):
        sagemaker.model_of({}, repository)


def test_the_program_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sagemaker, "REPOSITORY", tmp_path / "missing")
    monkeypatch.delenv(sagemaker.MODEL, raising=False)
    ended: Any
    with pytest.raises(SystemExit) as ended:
        sagemaker.main()
    assert ended.value.code.startswith("serve: ")
