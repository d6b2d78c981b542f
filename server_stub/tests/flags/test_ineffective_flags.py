"""Deprecated flags work, and are warned of."""

from pathlib import Path
from typing import Any

import pytest

DEPRECATED = "'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."
OVERRULED = (
    "Overriding deprecated '--strict-model-config' from False to True in favor of '--disable-auto-complete-config'!"
)


@pytest.mark.parametrize(
    ("flags", "strict", "warnings"),
    [
        ([], False, ()),
        (["--disable-auto-complete-config"], True, ()),
        (["--strict-model-config=true"], True, (DEPRECATED,)),
        (["--strict-model-config=false"], False, (DEPRECATED,)),
        (["--strict-model-config=true", "--disable-auto-complete-config"], True, (DEPRECATED,)),
        (["--strict-model-config=false", "--disable-auto-complete-config"], True, (DEPRECATED, OVERRULED)),
    ],
)
def test_strict_model_config_is_deprecated_and_can_be_overruled(
    parse: Any, flags: list[str], strict: bool, warnings: tuple[str, ...]
) -> None:
    options = parse(*flags)
    assert (options.strict_model_config, options.warnings) == (strict, warnings)


def test_it_is_warned_of_in_a_file_and_in_the_environment_too(
    parse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.toml").write_text("strict-model-config = true\n")
    assert parse(f"--config-file={tmp_path / 'serve.toml'}").warnings == (DEPRECATED,)
    monkeypatch.setenv("REPOAGENT_SERVE_STRICT_MODEL_CONFIG", "true")
    assert parse().warnings == (DEPRECATED,)
