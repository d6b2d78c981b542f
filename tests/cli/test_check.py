"""``repoagent check``: the report of a load that is not served, and its exit status."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.engines.probe import probe
from tests.engines.builder.plans import need_tensorrt
from tests.warm import Warm

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"


Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check(warm: Warm) -> Check:
    """``repoagent check`` to its end, with the example's key unless there is another."""

    def run(*arguments: str, identity: str | None = None) -> "subprocess.CompletedProcess[str]":
        key = identity if identity is not None else (EXAMPLE / "identity.txt").read_text().split()[-1]
        return warm.run(["check", *arguments], env={"PATH": "/usr/bin:/bin", "DIGITS_IDENTITY": key})

    return run


def test_a_good_model_is_ok_and_its_report_has_every_agent(check: Check, tmp_path: Path) -> None:
    model = EXAMPLE / "repository" / "digits_secure"
    result = check(str(model), "--json", "--allow-swap", f"--workspace-directory={tmp_path}")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [entry["agent"] for entry in report["entries"]] == ["checksum", "decrypt", "checksum", "convert"]
    assert report["outcome"] == "unloaded"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]


def test_the_plan_of_an_encrypted_model_is_in_the_report(check: Check, tmp_path: Path) -> None:
    need_tensorrt()
    model = tmp_path / "digits_secure"
    shutil.copytree(EXAMPLE / "repository" / "digits_secure", model)
    config = (model / "config.pbtxt").read_text()
    assert 'key: "level" value: "extended"' in config
    (model / "config.pbtxt").write_text(config.replace('key: "level" value: "extended"', 'key: "to" value: "tensorrt"'))
    result = check(str(model), "--json", "--allow-swap", f"--workspace-directory={tmp_path / 'work'}")
    assert result.returncode == 0, result.stderr
    (*_, convert) = json.loads(result.stdout)["entries"]
    load = convert["actions"][0]
    assert (convert["agent"], load["action"], load["outcome"]) == ("convert", "LOAD", "ok")
    (note,) = [note for note in load["notes"] if "onnx to tensorrt" in note]
    assert "tensorrt" in note
    assert ", not kept: the load is confidential" in note
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_plan_is_completed_from_its_statement_where_no_gpu_can_read_it(check: Check, tmp_path: Path) -> None:
    need_tensorrt()
    model = tmp_path / "digits"
    (model / "1").mkdir(parents=True)
    shutil.copy(EXAMPLE / "model.onnx", model / "1/model.onnx")
    (model / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 8 model_repository_agents { agents { name: "convert" '
        'parameters { key: "to" value: "tensorrt" } } }'
    )
    flags = ("--json", "--complete-config", f"--workspace-directory={tmp_path / 'work'}")
    result = check(str(model), *flags, f"--cache-directory={tmp_path / 'cache'}")
    assert result.returncode == 0, result.stderr
    (version,) = json.loads(result.stdout)["versions"]
    config = version["config"]
    assert (version["version"], config["backend"], config["max_batch_size"]) == (1, "tensorrt", 8)
    assert [one["data_type"] for one in (*config["input"], *config["output"])]
    if not probe().usable:
        assert "TensorRT plans cannot run here" in version["problem"]


def _onnx(tmp_path: Path, config: str | None) -> str:
    model = tmp_path / "digits"
    (model / "1").mkdir(parents=True)
    shutil.copy(EXAMPLE / "model.onnx", model / "1/model.onnx")
    if config is not None:
        (model / "config.pbtxt").write_text(config)
    return str(model)


@pytest.mark.parametrize(
    ("config", "flag", "text"),
    [
        ("max_batch_size: 8", "--complete-config", "version 1: backend onnxruntime, max_batch_size 8, input "),
        ("", "--backend-config=onnxruntime,default-max-batch-size=6", "digits: ok"),
    ],
)
def test_a_configuration_is_completed_where_that_is_asked_for(
    check: Check, tmp_path: Path, config: str, flag: str, text: str
) -> None:
    result = check(_onnx(tmp_path, config), flag, "--complete-config", f"--workspace-directory={tmp_path / 'work'}")
    assert result.returncode == 0, result.stderr
    assert text in result.stdout
    assert ("max_batch_size 6" in result.stdout) is ("=6" in flag)


@pytest.mark.parametrize(
    ("config", "flags", "reason"),
    [
        (None, ("--disable-auto-complete-config",), "has no config.pbtxt"),
        ("max_batch_size: 8 instance_group { count: 9 }", ("--complete-config", "--limit-instances=8"), "instances"),
        ("max_batch_size: 8", ("--limit-config-bytes=5",), "--limit-config-bytes"),
        ("instance_group { kind: KIND_GPU gpus: 7 }", ("--complete-config",), "KIND_GPU but no GPUs are available"),
    ],
)
def test_what_a_server_with_these_flags_would_refuse_is_refused(
    check: Check, tmp_path: Path, config: str | None, flags: tuple[str, ...], reason: str
) -> None:
    result = check(_onnx(tmp_path, config), *flags, f"--workspace-directory={tmp_path / 'work'}")
    assert result.returncode == 1
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_the_backend_that_the_files_imply_is_the_one_that_the_policy_judges(check: Check, tmp_path: Path) -> None:
    """T28: a model without a configuration is judged as well."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nmodels = ["*"]\nbackends = ["tensorrt"]\n')
    result = check(_onnx(tmp_path, None), f"--agent-policy={policy}", f"--workspace-directory={tmp_path / 'work'}")
    assert result.returncode == 1
    assert "the policy does not allow backend 'onnxruntime'; allowed: tensorrt" in result.stderr


def test_a_refused_model_exits_1_with_the_reason_and_the_report(check: Check, tmp_path: Path) -> None:
    model = EXAMPLE / "repository" / "digits_secure"
    other = "AGE-SECRET-KEY-1" + "Q" * 58
    result = check(str(model), "--allow-swap", f"--workspace-directory={tmp_path}", identity=other)
    assert result.returncode == 1
    assert "repoagent: agent 'decrypt': " in result.stderr
    assert other not in result.stdout + result.stderr
    assert "decrypt   LOAD" in result.stdout
    assert "failed" in result.stdout


@pytest.mark.parametrize("name", ["nosuch", "nosuch/"])
def test_a_missing_directory_is_named(check: Check, tmp_path: Path, name: str) -> None:
    result = check(str(tmp_path / name))
    assert result.returncode == 1
    assert f"repoagent: there is no model directory {tmp_path / name}" in result.stderr


@pytest.mark.parametrize("model", ["m/1", "m/config.pbtxt"])
def test_a_repository_is_not_taken_for_a_model(check: Check, tmp_path: Path, model: str) -> None:
    (tmp_path / "models" / model).mkdir(parents=True)
    if model.endswith(".pbtxt"):
        (tmp_path / "models" / model).rmdir()
        (tmp_path / "models" / model).write_text("")
    result = check(str(tmp_path / "models"))
    assert result.returncode == 1
    assert "models is a model repository, not a model; name one of its models, such as " in result.stderr
    assert result.stderr.strip().endswith("/models/m")


def test_a_broken_configuration_has_line_and_column(check: Check, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text('name: "m"\nmax_batch_sise: 3\n')
    result = check(str(tmp_path / "m"))
    assert result.returncode == 1
    assert "config.pbtxt:2:1" in result.stderr
    assert "max_batch_size" in result.stderr


def test_what_no_server_could_load_is_refused(check: Check, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = check(str(tmp_path / "empty"))
    assert result.returncode == 1
    assert "at least one version must be available" in result.stderr
    (tmp_path / "linked" / "1").mkdir(parents=True)
    (tmp_path / "linked" / "1" / "model.onnx").symlink_to("/etc/passwd")
    result = check(str(tmp_path / "linked"))
    assert result.returncode == 1
    assert "link" in result.stderr


@pytest.mark.parametrize(
    ("config", "file", "reason"),
    [
        ('backend: "onxruntime"', "model.onnx", "unable to find backend 'onxruntime'; available are "),
        ('backend: "onnxruntime"', "other.onnx", "'1/model.onnx' for model 'm': version directory 1 holds an ONNX"),
        ('backend: "python"', "main.py", "unable to find '1/model.py' for model 'm'"),
        ('backend: "llm"', "model.safetensors", "unable to find '1/genai_config.json' for model 'm'"),
        ("", "model.bin", "must specify 'platform' or 'backend' for model 'm'"),
        ('backend: "pytorch"', "model.pt", "holds a PyTorch model: write it with torch.onnx.export("),
    ],
)
def test_a_backend_or_a_file_that_a_load_would_not_find_is_refused(
    check: Check, tmp_path: Path, config: str, file: str, reason: str
) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1" / file).write_bytes(b"weights")
    (tmp_path / "m/config.pbtxt").write_text(config)
    result = check(str(tmp_path / "m"))
    assert (result.returncode, result.stdout) == (1, "")
    assert reason in result.stderr


def test_a_model_for_a_command_may_name_a_backend_of_another_server(check: Check, tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.pt").write_bytes(b"weights")
    (tmp_path / "m/config.pbtxt").write_text('backend: "pytorch"')
    result = check(str(tmp_path / "m"), "--for-command")
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "m: ok for a command")
    (tmp_path / "policy.toml").write_text('[[rule]]\nmodels = ["*"]\ncommands = []\n')
    refused = check(str(tmp_path / "m"), "--for-command", "--agent-policy", str(tmp_path / "policy.toml"))
    assert refused.returncode == 1
    assert "command" in refused.stderr
    both = check(str(tmp_path / "m"), "--for-command", "--complete-config")
    assert (both.returncode, "--for-command" in both.stderr) == (2, True)


_COMPLETED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        ASK
        config.set_max_batch_size(3)
        return config
"""


@pytest.mark.parametrize("where", ["", 'parameters { key: "EXECUTION" value { string_value: "process" } }'])
@pytest.mark.parametrize(("ask", "shown"), [("pass", "max_batch_size 3"), ("pb_utils.load_model('x')", "no server")])
def test_a_python_model_completes_its_configuration_without_a_server(
    check: Check, tmp_path: Path, where: str, ask: str, shown: str
) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.py").write_text(_COMPLETED.replace("ASK", ask))
    io = "{ name: 'x' data_type: TYPE_FP32 dims: 1 }"
    (tmp_path / "m/config.pbtxt").write_text(f"backend: 'python' input {io} output {io} {where}")
    result = check(str(tmp_path / "m"), "--complete-config")
    assert shown in result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.returncode == (ask != "pass")


def test_an_interrupt_gives_the_load_up_and_exits_130(tmp_path: Path) -> None:
    agent = tmp_path / "agents" / "slow" / "agent.py"
    agent.parent.mkdir(parents=True)
    agent.write_text(
        "from repoagent.api import Agent, CancelledError\n"
        "import time\n\n"
        "class Slow(Agent):\n"
        "    api_version = 1\n\n"
        "    def load(self, model):\n"
        "        print('loading', flush=True)\n"
        "        while not model.cancelled:\n"
        "            time.sleep(0.01)\n"
        "        raise CancelledError('given up')\n\n"
        "    def load_fail(self, model):\n"
        "        print('told', flush=True)\n"
    )
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('model_repository_agents { agents [{ name: "slow" }] }')
    command = [sys.executable, "-m", "repoagent", "check", str(model), f"--repoagent-directory={tmp_path / 'agents'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert output.startswith("told\n")
    assert errors.endswith("interrupted\n")


def _model_with_agent(directory: Path, name: str, methods: str) -> tuple[Path, str]:
    """A model that names one agent of a directory; returns both the model and the flag for the directory."""
    agent = directory / "agents" / name / "agent.py"
    agent.parent.mkdir(parents=True)
    agent.write_text(f"from repoagent.api import Agent\n\nclass One(Agent):\n    api_version = 1\n\n{methods}")
    (directory / "m" / "1").mkdir(parents=True)
    (directory / "m" / "1" / "model.onnx").touch()
    (directory / "m" / "config.pbtxt").write_text(f'model_repository_agents {{ agents [{{ name: "{name}" }}] }}')
    return directory / "m", f"--repoagent-directory={directory / 'agents'}"


def test_a_second_interrupt_ends_an_agent_that_does_not_look_without_a_traceback(tmp_path: Path) -> None:
    model, agents = _model_with_agent(
        tmp_path,
        "deaf",
        "    def load(self, model):\n"
        "        import time\n"
        "        print('loading', flush=True)\n"
        "        while True:\n"
        "            time.sleep(0.01)\n",
    )
    command = [sys.executable, "-m", "repoagent", "check", str(model), agents]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        deadline = threading.Timer(120, child.kill)
        deadline.start()
        try:
            assert child.stdout.readline() == "loading\n"
            child.send_signal(signal.SIGINT)
            assert "another Ctrl-C stops it at once" in child.stderr.readline()
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate()
        finally:
            deadline.cancel()
            child.kill()
    assert child.returncode == 130
    assert errors == "interrupted\n"


def test_an_agent_that_fails_in_the_unload_is_a_failure(check: Check, tmp_path: Path) -> None:
    model, agents = _model_with_agent(
        tmp_path, "leaver", "    def unload(self, model):\n        raise OSError('the door is locked')\n"
    )
    result = check(str(model), agents)
    assert result.returncode == 1
    assert "UNLOAD" in result.stdout
    assert "m: ok" not in result.stdout
    assert "the model loads, but agent 'leaver' failed in UNLOAD: " in result.stderr
    assert "the door is locked" in result.stderr.splitlines()[-1]


def test_a_parameter_that_an_agent_needs_is_named(check: Check, tmp_path: Path) -> None:
    model, agents = _model_with_agent(
        tmp_path, "needs", "    def load(self, model):\n        int(model.parameters['limit'])\n"
    )
    result = check(str(model), agents)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith("agent 'needs': parameter 'limit' is missing")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("url", ["zoo://models/m", "zoo://models/m/"])
def test_a_filesystem_of_a_plugin_is_read(tmp_path: Path, url: str) -> None:
    site = tmp_path / "site"
    info = site / "zoo-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[repoagent.plugins]\nzoo = zoo\n")
    (site / "zoo.py").write_text(
        "from fsspec.implementations.memory import MemoryFileSystem\n"
        "from repoagent.api.hooks import hookimpl\n\n"
        "class Zoo(MemoryFileSystem):\n"
        "    protocol = 'zoo'\n"
        "    store = {}\n"
        "    pseudo_dirs = ['']\n\n"
        "Zoo().pipe_file('/models/m/1/model.onnx', b'1')\n"
        "Zoo().pipe_file('/models/m/config.pbtxt', b'backend: \"onnxruntime\"')\n\n"
        "@hookimpl\n"
        "def register_filesystems():\n"
        "    return {'zoo': 'zoo:Zoo'}\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "repoagent", "check", url, f"--workspace-directory={tmp_path / 'work'}"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "m: ok\n"
