"""What SageMaker runs in an image: ``serve``, without arguments. Variables of the environment take their place.

The variables are those of Triton's image. Each becomes a flag of ``tritonserver``.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent_server.program.tritonserver import defaults

REPOSITORY: Final = Path("/opt/ml/model")
"""Where SageMaker unpacks the archive of an endpoint's model."""
MODEL: Final = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
"""The variable that names the model; the endpoint reads it, too."""
_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SAGEMAKER_BIND_TO_PORT": "--sagemaker-port",
        "SAGEMAKER_SAFE_PORT_RANGE": "--sagemaker-safe-port-range",
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": "--buffer-manager-thread-count",
        "SAGEMAKER_TRITON_THREAD_COUNT": "--sagemaker-thread-count",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "--log-verbose",
        "SAGEMAKER_TRITON_LOG_INFO": "--log-info",
        "SAGEMAKER_TRITON_LOG_WARNING": "--log-warning",
        "SAGEMAKER_TRITON_LOG_ERROR": "--log-error",
    }
)


def model_of(environment: Mapping[str, str], repository: Path) -> str:
    """The model of the endpoint: the one that ``environment`` names, or the only one of ``repository``.

    Raises:
        InvalidArgumentError: there is no such model, or the endpoint is one for several models.
    """
    if environment.get("SAGEMAKER_MULTI_MODEL") == "true":
        raise InvalidArgumentError(
            "endpoints for several models (SAGEMAKER_MULTI_MODEL) are not supported; use one endpoint per model, or an "
            "ensemble"
        )
    if (repository / "config.pbtxt").exists():
        raise InvalidArgumentError(f"{repository} is a model; the archive must have the model's directory at its top")
    name = environment.get(MODEL, "")
    found = sorted(path.name for path in repository.iterdir() if path.is_dir()) if repository.is_dir() else []
    if name and name not in found:
        raise InvalidArgumentError(f"the model '{name}', which {MODEL} names, is not in {repository}")
    if not name and len(found) != 1:
        raise InvalidArgumentError(f"{repository} has {len(found)} models; name one with {MODEL}")
    return name or found[0]


def flags(environment: Mapping[str, str], model: str, repository: Path) -> list[str]:
    """The command line that serves ``model`` to SageMaker alone."""
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--load-model={model}",
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        *(f"{flag}={environment[name]}" for name, flag in _VARIABLES.items() if environment.get(name)),
    ]


def main() -> None:
    """Run the server; arguments are further flags."""
    from repoagent.cli.main import load, run

    try:
        model = os.environ[MODEL] = model_of(os.environ, REPOSITORY)
    except InvalidArgumentError as error:
        sys.exit(f"serve: {error}")
    arguments = [*flags(os.environ, model, REPOSITORY), *sys.argv[1:]]
    run(load("repoagent_server.program.serve_command:serve"), "serve", args=arguments, default_map=defaults(os.environ))
