"""C programs with a server in them: they link Triton's library name, and have no environment variable set."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extent import IN_FULL, in_full

pytestmark = pytest.mark.slow

IDENTITY = 'backend: "identity"\n{tensors}'
DELAY = 'parameters {{{{ key: "execute_delay_ms" value {{{{ string_value: "{}" }}}} }}}}'
MODELS = {
    "identity": IDENTITY,
    "words": 'backend: "identity"\n{words}',
    "slow": f"{IDENTITY}\n{DELAY.format(300)}",
    "endless": f"{IDENTITY}\n{DELAY.format(600_000)}",  # until its request is cancelled
    "guarded": 'backend: "identity"\n{tensors}\nmodel_repository_agents {{ agents [ {{ name: "a" }} ] }}',
    "repeat": """backend: "repeat"
model_transaction_policy {{ decoupled: true }}
input {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }}
input {{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }}
input {{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }}""",
    "wrapped": """platform: "ensemble"
{tensors}
ensemble_scheduling {{ step {{
  model_name: "identity"  model_version: -1
  input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
}} }}""",
}
TENSORS = (
    'input {{ name: "INPUT0" data_type: TYPE_{0} dims: [ -1 ] }}\n'
    'output {{ name: "OUTPUT0" data_type: TYPE_{0} dims: [ -1 ] }}'
)
SAID = " param0=an example string parameter param1=42 param2=false"
OWNED = "the request belongs to the server until its release callback is called"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, config in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        text = config.format(tensors=TENSORS.format("FP32"), words=TENSORS.format("STRING"))
        (root / name / "config.pbtxt").write_text(text)
    return root


@pytest.fixture(scope="module")
def embed(compile_c: Any, capi: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = capi / "lib"
    flags = (f"-L{library}", "-ltritonserver", f"-Wl,-rpath,{library}", "-lpthread")
    made: Path = compile_c.program("embed.c", tmp_path_factory.mktemp("embed") / "embed", *flags)
    return made


def run(*command: Path | str, code: int = 0, **environment: str) -> list[str]:
    """What the program prints; it has no environment but ``environment``."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def tour(embed: Path, repository: Path) -> list[str]:
    return run(embed, "tour", repository)


def lines(tour: list[str], start: str) -> list[str]:
    return [line.removeprefix(start) for line in tour if line.startswith(start)]


def test_a_program_loads_models_and_asks_about_them(tour: list[str]) -> None:
    assert lines(tour, "load nothing: ") == [
        (
            "Internal: failed to load 'nothing', failed to poll from model repository: model not found in any model "
            "repository"
        )
    ]
    assert lines(tour, "server: ")[0].startswith('{"name":"embedded","version":')
    assert '"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[-1]}]' in lines(tour, "model: ")[0]
    assert lines(tour, "index: ")[0].count('"state":"READY"') == 5


def test_requests_in_one_piece_in_two_and_used_again(tour: list[str]) -> None:
    assert lines(tour, "response: identity 1 ")[:2] == [
        f"'one' OUTPUT0 FP32[4] 1 2 3 4{SAID}",
        f"'again, in two pieces' OUTPUT0 FP32[4] 3 4 1 2{SAID}",
    ]
    assert lines(tour, "response: words 1 ") == [f"'' OUTPUT0 BYTES[2]....one....two{SAID}"]


def test_a_request_that_does_not_fit_is_refused_and_stays_the_callers(tour: list[str]) -> None:
    size, missing = lines(tour, "infer: Invalid argument: ")
    assert size == "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 24"
    assert "expected 1 inputs but got 0 inputs for model 'identity'" in missing


def test_a_request_can_be_deleted_as_soon_as_its_last_response_has_come(tour: list[str]) -> None:
    """C1: as programs for Triton do."""
    assert lines(tour, "delete after the last response: ") == ["ok"]
    assert lines(tour, "delete it again: ") == ["Invalid argument: the request was deleted"]


def test_of_data_for_host_policies_only_that_of_the_cpu_counts(tour: list[str]) -> None:
    """C2: it was appended to the rest."""
    (answer,) = lines(tour, "response: identity 1 'policies' ")
    assert answer.startswith("OUTPUT0 FP32[4] 3 4 1 2")


def test_the_inputs_are_checked_before_the_callbacks(tour: list[str]) -> None:
    """C7: as in Triton."""
    (long,) = lines(tour, "without callbacks, too long: ")
    assert "input byte size mismatch for input 'INPUT0'" in long
    assert lines(tour, "without callbacks: ") == ["Invalid argument: the request has no response callback"]


def test_a_decoupled_model_answers_more_than_once_and_ends_with_an_empty_response(tour: list[str]) -> None:
    assert lines(tour, "response: repeat 1 '' OUT INT32[1] ") == [f"{value} IDX UINT32[1]" for value in (7, 8, 9)]
    assert lines(tour, "finals: ") == []  # each request had one final flag and one release


MOMENTS = ["REQUEST_START", "QUEUE_START"]
ENDS = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END"]


def test_traces_follow_a_request_and_those_of_an_ensemble(tour: list[str]) -> None:
    assert lines(tour, "trace 1<77 identity: ") == MOMENTS + ENDS
    assert lines(tour, "trace 2<77 wrapped: ") == [*MOMENTS, "REQUEST_END"]
    assert lines(tour, "trace 3<2 identity: ") == MOMENTS + ENDS
    released = [line for line in tour if line.endswith("released")]
    assert released == ["trace 1 released", "trace 3 released", "trace 2 released"]
    assert lines(tour, "tensor TENSOR_QUEUE_INPUT: ")[0] == "INPUT0 FP32 16 in place"
    assert lines(tour, "tensor TENSOR_BACKEND_OUTPUT: ")[0] == "OUTPUT0 FP32 16 in place"


def test_a_running_request_can_only_be_read_and_cancelled(tour: list[str]) -> None:
    for what in ("change", "submit"):
        assert lines(tour, f"{what} while it runs: ") == [f"Invalid argument: {OWNED}"]
    assert lines(tour, "delete while it runs: ") == [
        "Invalid argument: the request belongs to the server until its last response has come"
    ]
    assert lines(tour, "cancelled: ") == ["1, answered before the other: 1"]
    assert lines(tour, "response: <invalid code>: ") == ["request cancelled"] * 2  # as Triton writes that code


def test_what_is_gone_is_an_error(tour: list[str]) -> None:
    assert lines(tour, "request to an unloaded model: ")[0].startswith("Not found: ")
    assert lines(tour, "request to a stopped server: ") == ["Unavailable: Server not ready: it is stopped"]
    assert lines(tour, "question to a deleted server: ")[0].startswith("Invalid argument: not a living TRITONSERVER_")
    assert tour[-1] == "handles: 1"  # the error for when there is no memory for another


def test_metrics_repositories_load_parameters_and_the_log(embed: Path, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "inner" / "1").mkdir(parents=True)
    config = 'backend: "identity"\n' + TENSORS.format("FP32").replace("-1", "4").replace("{{", "{").replace("}}", "}")
    (tmp_path / "inner" / "config.pbtxt").write_text(config)
    assert run(embed, "operate", repository, tmp_path) == [  # C6: the first three
        "described in another way: ok",
        "of another kind: Already exists: metric family 'my_times' exists with another kind: HISTOGRAM",
        "no arguments deleted: ok",
        "set a histogram: Unsupported: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set",
        'metric: my_times_bucket{where="here",le="1"} 1',
        'metric: my_times_bucket{where="here",le="10"} 2',
        'metric: my_times_bucket{where="here",le="+Inf"} 2',
        'metric: my_times_sum{where="here"} 5.5',
        'metric: my_times_count{where="here"} 2',
        f"again: Already exists: model repository '{tmp_path}' has already been registered",
        "batch: 1, transaction: 1",
        "poll: Unavailable: polling is disabled",
        "sent: 1",
        "data on a GPU: Unsupported: input 'INPUT0' lies in the memory of GPU 0; move it to the CPU",
        f"response: outer 1 '' OUTPUT0 FP32[4] 1 2 3 4{SAID}",
        "log: 1 0",
        "handles: 1",
    ]


def test_32_threads_whose_callbacks_call_back_in(embed: Path, repository: Path) -> None:
    for _ in range(in_full(20, otherwise=1)):
        assert run(embed, "threads", repository) == ["done: 640, wrong: 0, handles: 1"]


@pytest.mark.skipif(not IN_FULL, reason="makes a hundred servers")
def test_servers_that_were_deleted_leave_no_handle_and_little_memory(embed: Path, repository: Path) -> None:
    handles, _, kib = run(embed, "again", repository, "100")[-1].partition(", KiB more: ")
    assert handles == "handles: 1"
    assert int(kib) < 4000


def test_a_callback_reloads_and_unloads_the_model_that_answers(embed: Path, repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "identity", tmp_path / "identity")
    printed = run(embed, "reload", tmp_path)
    assert printed[-2:] == ["reload within a callback: ok", "unload within a callback: ok"]


def test_a_program_may_fork_before_its_first_server_and_a_child_of_one_is_refused(
    embed: Path, repository: Path
) -> None:
    assert run(embed, "fork", repository) == [
        "child: 0",
        (
            "in a child of a server: Unavailable: this process was forked from one in which repoagent runs already; "
            "fork before the first server is made"
        ),
        "second child: 0",
    ]


def test_two_servers_live_in_one_process(embed: Path, repository: Path) -> None:
    answer = f"response: slow 1 '' OUTPUT0 FP32[4] 1 2 3 4{SAID}"
    assert run(embed, "two", repository) == [
        "a model of the other server: Not found: Request for unknown model: 'slow' is not found",
        "a request of the other server: Invalid argument: the request was made for another server",
        answer,
        answer,
        "the second is ready: 1",
        answer,
        "handles: 1",
    ]


def test_servers_made_and_deleted_leave_nothing(embed: Path, repository: Path) -> None:
    (line,) = run(embed, "again", repository, "20")
    handles, _, kib = line.partition(", KiB more: ")
    assert handles == "handles: 1"
    assert int(kib) < 4000


def test_a_server_that_the_program_forgot_is_stopped_at_exit_so_that_native_agents_hear_of_it(
    embed: Path, repository: Path, compile_c: Any, tmp_path: Path
) -> None:
    compile_c.agent("recording_agent.c", "a", tmp_path)
    run(embed, "forget", repository, tmp_path, TRACE=str(tmp_path / "trace.txt"))
    assert (tmp_path / "trace.txt").read_text().split("\n")[-5:-1] == [
        "a UNLOAD",
        "a UNLOAD_COMPLETE",
        "a MFini",
        "a Fini",
    ]


def test_the_first_python_of_the_path_is_never_taken(embed: Path, repository: Path, tmp_path: Path) -> None:
    for name in ("python", "python3", "python3.11"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 7\n")
        (tmp_path / name).chmod(0o755)
    assert run(embed, "again", repository, "1", PATH=str(tmp_path)) != []


def test_an_environment_without_repoagent_is_an_error_that_states_the_remedy(
    embed: Path, repository: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    (line,) = run(embed, "again", repository, "1", code=1, REPOAGENT_PYTHON=python)
    assert "Unavailable: repoagent cannot be imported by" in line
    assert "from a checkout: pip install . ./capi" in line


def test_a_variable_that_names_no_program_is_an_error_that_names_it(
    embed: Path, repository: Path, tmp_path: Path
) -> None:
    python = str(tmp_path / "none")
    (line,) = run(embed, "again", repository, "1", code=1, REPOAGENT_PYTHON=python)
    assert f"Invalid argument: {python} cannot be run: No such file or directory" in line
    assert "REPOAGENT_PYTHON" in line


def test_without_a_shared_library_of_python_the_error_names_what_to_install(
    compile_c: Any, capi: Path, repository: Path, tmp_path: Path
) -> None:
    """The layer as it is built with an interpreter that has none."""
    import sysconfig

    source = Path(__file__).parents[1]
    places = [
        f'-DREPOAGENT_{name}="{value}"'
        for name, value in (
            ("EXECUTABLE", "/nowhere/bin/python3.11"),
            ("LIBPYTHON", "/nowhere/lib/libpython3.11.so.1.0"),
            ("LIBPYTHON_NAME", "libpython3.11.so.1.0"),
        )
    ]
    library = tmp_path / "libtritonserver.so"
    command = [compile_c.cc, "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", *places]
    includes = [f"-I{source / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    files = [str(file) for file in (source / "src").glob("*.c")]
    subprocess.run([*command, *includes, *files, "-o", library, "-lpthread"], check=True)
    program = compile_c.program(
        "embed.c", tmp_path / "embed", f"-L{tmp_path}", "-ltritonserver", f"-Wl,-rpath,{tmp_path}", "-lpthread"
    )
    (line,) = run(program, "again", repository, "1", code=1)
    assert "Unsupported: a C program needs the shared library of Python, libpython3.11.so.1.0" in line
    assert f"install it (on Debian: libpython3.{sys.version_info.minor})" in line


def test_signals_stay_the_programs(embed: Path, repository: Path) -> None:
    (line,) = run(embed, "signals", repository)
    assert line == "changed: 0"
