"""The settings of an application: what is not known, or cannot be, is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray", reason="ray[serve] is not installed: `make ray` installs it")

from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema
from repoagent_ray import Settings, application
from repoagent_ray.environment import CLUSTER, in_process_of
from repoagent_ray.servicer import FUNCTIONS

from repoagent.errors import InvalidArgumentError

_FOLDER = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"models": 3}, "Extra inputs are not permitted"),
        ({"models_per_replica": 0}, "greater than or equal to 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas is 2, below min_replicas, which is 3"),
        ({"options": {"on_demand": True}}, "'on_demand' cannot be set here"),
        ({"options": {"nosuch": 1}}, "'nosuch' is not a field of repoagent.server.Options"),
        ({"model_repository": None}, "model_repository"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        Settings(**{"model_repository": "models", **given})


def test_a_limit_that_is_not_known_is_refused_with_the_application() -> None:
    settings = Settings(model_repository="models", options={"limits": {"nosuch": 1}})
    with pytest.raises(InvalidArgumentError, match="nosuch"):
        application(settings)


def test_texts_of_the_command_line_are_read() -> None:
    given: dict[str, Any] = {"models_per_replica": "5", "max_replicas": "4", "target_ongoing_requests": "2.5"}
    settings = Settings(model_repository="models", **given)
    assert (settings.models_per_replica, settings.most_replicas) == (5, 4)
    assert settings.server_options().drain_timeout == settings.drain_seconds


def test_the_configuration_beside_it_is_one_of_serves_and_of_these_settings() -> None:
    document = yaml.safe_load((_FOLDER / "serve.yaml").read_text())
    schema = ServeDeploySchema.model_validate(document)
    assert schema.grpc_options.grpc_servicer_functions == FUNCTIONS
    (app,) = schema.applications
    assert app.import_path == "repoagent_ray:application"
    assert Settings(**app.args).most_replicas == 3


def test_the_reference_has_every_setting() -> None:
    reference = (_FOLDER / "README.md").read_text()
    assert [name for name in Settings.model_fields if f"`{name}`" not in reference] == []


def test_the_reference_and_the_configuration_name_what_ray_is_started_with() -> None:
    for file in (_FOLDER / "README.md", _FOLDER / "serve.yaml", _FOLDER.parents[1] / "docs/scale.md"):
        text = file.read_text()
        assert [name for name, value in CLUSTER.items() if f"{name}={value}" not in text] == []


def test_switches_of_the_process_yield_to_those_of_the_operator() -> None:
    given = {"num_cpus": 2, "runtime_env": {"pip": ["x"], "env_vars": {"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "1"}}}
    made = in_process_of(given)
    assert (made["num_cpus"], made["runtime_env"]["pip"]) == (2, ["x"])
    assert made["runtime_env"]["env_vars"]["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] == "1"
    assert made["runtime_env"]["env_vars"]["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] == "0"
