"""Models of XGBoost and scikit-learn, signed, verified and converted on their way into the server.

    python examples/tables/run.py [ENVIRONMENT]

ENVIRONMENT is a virtual environment with scikit-learn, skl2onnx, skops, onnx and onnxruntime; without it only the model
of XGBoost is served. Neither library is imported by the server. XGBoost 3.2.0 wrote model.ubj: rows of six numbers.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from repoagent.errors import RepoAgentError
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.server import ModelControlMode, Server

HERE = Path(__file__).parent
CONFIG = 'max_batch_size: 64 model_repository_agents { agents { name: "convert" } }'
POLICY = """
[[rule]]
models = ["*"]
mode = "enforce"
trust_roots = {{ signer = "{key}" }}
before = [ {{ agent = "verify", parameters = {{ trust_root = "signer" }} }} ]
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def add(repository: Path, name: str, file: str) -> Path:
    """Make the directory of a model, and return where its file goes."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    return repository / name / "1" / file


def main(environment: str | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        repository = place / "repository"
        add(repository, "boosted", "model.ubj").write_bytes((HERE / "model.ubj").read_bytes())
        if environment:
            run(f"{environment}/bin/python", str(HERE / "train.py"), str(add(repository, "forest", "model.skops")))
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(place / "signer.key"))
        run("openssl", "ec", "-in", str(place / "signer.key"), "-pubout", "-out", str(place / "signer.pem"))
        program = str(Path(sys.executable).with_name("repoagent"))
        names = sorted(path.name for path in repository.iterdir())
        for name in names:
            run(program, "sign", str(repository / name), "--key", str(place / "signer.key"))
        (place / "policy.toml").write_text(POLICY.format(key=place / "signer.pem"))
        serve(place, names, environment)


def serve(place: Path, names: list[str], environment: str | None) -> None:
    """Load each model, ask it, and show that a changed one is refused."""
    settings = ConverterSettings.parse([f"skops={environment}"] if environment else [], False)
    rows = np.array([[2, 1, 0, 0, 1, 1], [-2, -1, 0, 0, -1, -1]], np.float32)
    with Server(
        model_repository=str(place / "repository"),
        model_control_mode=ModelControlMode.EXPLICIT,
        agent_policy=str(place / "policy.toml"),
        converters=settings,
    ) as server:
        for name in names:
            answer = server.load(name).run({"input": rows})
            print(f"{name}:", np.asarray(answer["label"]).ravel().astype(int).tolist())
            server.unload(name)
        file = place / "repository" / "boosted" / "1" / "model.ubj"
        file.write_bytes(file.read_bytes()[:-1] + b"]")
        try:
            server.load("boosted")
        except RepoAgentError as error:
            print("changed:", str(error).partition("\n")[0][:200])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
