"""The program ``tritonserver``: its defaults are Triton's."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from repoagent_server.program.options import ServeOptions
from repoagent_server.program.serve_command import serve
from repoagent_server.program.tritonserver import DEFAULTS, KEPT, defaults, main

_PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "tritonserver.md"

#: The arguments of the runtime "kserve-tritonserver" that KServe 0.15 brings along.
KSERVE: Final = (
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, ran: list[ServeOptions]) -> Any:
    """What the program would serve with."""

    def start(*arguments: str) -> ServeOptions:
        monkeypatch.setattr("sys.argv", ["tritonserver", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return ran.pop()

    return start


def test_it_listens_everywhere_as_triton_does(started: Any, parse: Any) -> None:
    options = started("--model-repository=/models")
    assert (options.http_address, options.grpc.address, options.metrics_address) == ("0.0.0.0", "0.0.0.0", None)
    plain = parse("--http-address=0.0.0.0", "--grpc-address=0.0.0.0", "--allow-open")
    assert options == plain, "nothing else differs"


def test_the_stock_arguments_of_kserve_start_it(started: Any) -> None:
    options = started(*KSERVE)
    assert (options.model_repository, options.model_control_mode) == (("/mnt/models",), "none")
    assert (options.http_address, options.http_port, options.grpc.port) == ("0.0.0.0", 8080, 9000)
    assert options.warnings == ()


def test_flags_the_environment_and_a_file_overrule_its_defaults(
    started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "flags.toml"
    file.write_text('http-address = "127.0.0.2"\n')
    assert started("--model-repository=/m", f"--config-file={file}").http_address == "127.0.0.2"
    monkeypatch.setenv("REPOAGENT_SERVE_HTTP_ADDRESS", "127.0.0.3")
    assert started("--model-repository=/m", f"--config-file={file}").http_address == "127.0.0.3"
    assert started("--model-repository=/m", "--http-address=127.0.0.4").http_address == "127.0.0.4"


def test_on_vertex_ai_its_endpoint_takes_the_place_of_the_others(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AIP_MODE": "PREDICTION",
        "AIP_STORAGE_URI": "gs://bucket/models",
        "AIP_HTTP_PORT": "8081",
        "AIP_HEALTH_ROUTE": "/health",
        "AIP_PREDICT_ROUTE": "/predict",
    }.items():
        monkeypatch.setenv(name, value)
    options = started()
    assert (options.allow_http, options.allow_grpc, options.vertex.port) == (False, False, 8081)
    assert options.model_repository == ("gs://bucket/models",)
    options = started("--allow-vertex-ai=false", "--allow-http=true", "--model-repository=/models")
    assert (options.allow_http, options.vertex, options.model_repository) == (True, None, ("/models",))


def test_a_repository_is_needed_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["tritonserver"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Missing option '--model-repository' / '--model-store'" in capsys.readouterr().err


def _flags(table: Sequence[str]) -> set[str]:
    return {match[1] for line in table if (match := re.match(r"\| `(--[a-z0-9-]+)` \|", line))}


def test_the_page_lists_every_difference_and_the_command_has_each_flag() -> None:
    text = _PAGE.read_text()
    changed, kept = text.split("## What differs from Triton")
    assert _flags(changed.splitlines()) == set(DEFAULTS)
    assert _flags(kept.splitlines()) == set(KEPT)
    known = {flag for parameter in serve.params for flag in parameter.opts}
    assert set(DEFAULTS) | set(KEPT) <= known
    assert set(defaults({})) <= {parameter.name for parameter in serve.params}
