"""Clients that know a model's URL and no names of ours: tritonclient, KServe's, and ``curl`` of a pandas frame."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repoagent_server import KServeGrpc, KServeHttp

from repoagent.server import Server

pytestmark = pytest.mark.slow
MODELS = Path(__file__).parents[3] / "agents/convert/tests/trees/data/models.npz"
KINDS = ("repoagent", "triton-fil", "mlserver")
WIDTH = 6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses for HTTP and gRPC, of a classifier of XGBoost under each naming, and with doubles as ``doubles``."""
    repository = tmp_path_factory.mktemp("repository")
    for name, key, value in (*((kind, "names", kind) for kind in KINDS), ("doubles", "input_type", "fp64")):
        (repository / name / "1").mkdir(parents=True)
        content = np.load(MODELS)["xgb-binary-logistic.ubj/file"].tobytes()
        (repository / name / "1" / "model.ubj").write_bytes(content)
        parameter = f'parameters {{ key: "{key}" value: "{value}" }}'
        agents = f'model_repository_agents {{ agents {{ name: "convert" {parameter} }} }}'
        (repository / name / "config.pbtxt").write_text(agents)
    with (
        Server(model_repository=str(repository)) as server,
        KServeHttp(server, KServeHttp.Options(port=0)) as http,
        KServeGrpc(server, KServeGrpc.Options(port=0)) as grpc,
    ):
        yield "{}:{}".format(*http.address), "{}:{}".format(*grpc.address)


def curl(url: str, *arguments: str) -> Any:
    done = subprocess.run(["curl", "-sS", url, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("orient", ["split", "records"])
@pytest.mark.parametrize("model", [*KINDS, "doubles"])
def test_curl_sends_a_frame_as_pandas_writes_it(model: str, orient: str, served: tuple[str, str]) -> None:
    """With no name of the model's tensors, in any naming; the answers are those of ``infer``."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.linspace(0, 1, 12).reshape(2, WIDTH), columns=[*"abcdef"])
    frame.loc[0, "c"] = np.nan
    url = f"http://{served[0]}/v2/models/{model}"
    body = f'{{"dataframe_{orient}": {frame.to_json(orient=orient)}}}'
    rows = curl(f"{url}/invocations", "-d", body)["predictions"]
    (one,) = curl(url)["inputs"]
    tensor = {"name": one["name"], "datatype": one["datatype"], "shape": [2, WIDTH]}
    found = curl(f"{url}/infer", "-d", json.dumps({"inputs": [{**tensor, "data": frame.to_numpy().tolist()}]}))
    for output in found["outputs"]:
        assert (
            np.ravel([row[output["name"]] for row in rows] if isinstance(rows[0], dict) else rows).tolist()
            == (output["data"])
        )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", KINDS)
def test_tritonclient_takes_all_from_the_metadata(model: str, protocol: str, served: tuple[str, str]) -> None:
    client: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    connection = client.InferenceServerClient(served[protocol == "grpc"])
    known = connection.get_model_metadata(model, **({} if protocol == "http" else {"as_json": True}))
    (one,) = known["inputs"]
    rows = np.full((2, int(one["shape"][1])), 0.5, np.float32)
    given = client.InferInput(one["name"], list(rows.shape), one["datatype"])
    given.set_data_from_numpy(rows)
    found = connection.infer(model, [given])
    for output in known["outputs"]:
        assert len(found.as_numpy(output["name"])) == 2
    connection.close()


@pytest.mark.skipif(
    importlib.util.find_spec("kserve") is None, reason="kserve is not installed: the extra 'dev' has it"
)
def test_kserves_client_sends_a_list_of_rows(served: tuple[str, str]) -> None:
    program = Path(__file__).with_name("kserve_table_program.py")
    command = [sys.executable, str(program), f"http://{served[0]}", *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert tuple(answers) == KINDS
    assert all(len(rows) == 2 for outputs in answers.values() for rows in outputs.values())


def test_curl_sends_what_pandas_splits_a_frame_into(served: tuple[str, str]) -> None:
    """``df.to_dict("split")["data"]``, which has doubles: as one tensor, with the name that the server states."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.linspace(0, 1, 12).reshape(2, WIDTH), columns=[*"abcdef"])
    url = f"http://{served[0]}/v2/models/doubles"
    (one,) = curl(url)["inputs"]
    tensor = {"name": one["name"], "datatype": one["datatype"], "shape": [*frame.shape]}
    body = json.dumps({"inputs": [{**tensor, "data": json.loads(frame.to_json(orient="split"))["data"]}]})
    found = {output["name"]: output for output in curl(f"{url}/infer", "-d", body)["outputs"]}
    assert one["datatype"] == "FP64"
    assert found["label"]["shape"] == [2, 1]
    assert found["probabilities"]["shape"] == [2, 2]
    assert sum(found["probabilities"]["data"]) == pytest.approx(2)
