"""``repoagent prepare``: the result of a chain in a directory, whole and readable, or nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import PLAIN, Program, agent, left_in
from tests.warm import Program as Started
from tests.warm import Warm

pytestmark = pytest.mark.slow

MARK = ".repoagent-prepared"
COMPLETE = sorted([*PLAIN, "README.md", "model.sig", MARK])


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_result_is_in_the_directory_and_readable_for_another_user(
    program: Program, folder: Path, memory: Path, tmp_path: Path
) -> None:
    target = memory / "models"
    result = program("prepare", folder, target)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f"llama: ready in {target}\n")
    assert sorted(os.listdir(target)) == COMPLETE
    assert {name: (target / name).read_bytes() for name in PLAIN} == PLAIN
    assert {path.stat().st_mode & 0o777 for path in target.iterdir() if path.name != MARK} == {0o444}
    assert target.stat().st_mode & 0o777 == 0o755
    assert left_in(tmp_path / "work") == []
    if os.geteuid() == 0:
        memory.chmod(0o755)
        cat = subprocess.run(["cat", str(target / "config.json")], user=1001, capture_output=True, check=True)
        assert cat.stdout == PLAIN["config.json"]


def test_it_works_for_a_user_who_is_not_root(
    unprivileged: tuple[str, ...], flags: list[str], folder: Path, memory: Path, tmp_path: Path
) -> None:
    words = [*unprivileged, sys.executable, "-m", "repoagent", "prepare", *flags, str(folder), str(memory)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert sorted(os.listdir(memory)) == COMPLETE
    assert {name: (memory / name).read_bytes() for name in PLAIN} == PLAIN
    assert left_in(tmp_path / "work") == []


def test_a_second_call_gives_the_same(program: Program, folder: Path, memory: Path) -> None:
    assert program("prepare", folder, memory).returncode == 0
    first = tree(memory)
    (memory / "left").mkdir()
    (memory / "left/over").write_text("x")
    assert program("prepare", folder, memory).returncode == 0
    assert tree(memory) == first


def test_what_is_tampered_with_leaves_nothing(program: Program, folder: Path, memory: Path) -> None:
    assert program("prepare", folder, memory).returncode == 0
    (folder / "README.md").write_text("Another model.")
    result = program("prepare", folder, memory)
    assert result.returncode == 1
    assert "changed after signing: README.md" in result.stderr.splitlines()[-1]
    assert os.listdir(memory) == []


def test_every_pair_arrives_or_none(program: Program, folder: Path, memory: Path) -> None:
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    pairs = [folder, memory / "a", other, memory / "b"]
    both = program("prepare", *pairs)
    assert both.returncode == 0, both.stderr
    assert (sorted(os.listdir(memory / "a")), sorted(os.listdir(memory / "b"))) == (COMPLETE, COMPLETE)
    (other / "README.md").write_text("Another model.")
    assert program("prepare", *pairs).returncode == 1
    assert (os.listdir(memory / "a"), os.listdir(memory / "b")) == ([], [])


def test_plaintext_goes_to_a_disk_only_where_that_is_allowed(program: Program, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "disk"
    result = program("prepare", folder, target)
    assert result.returncode == 1
    assert "confidential files need a tmpfs or ramfs" in result.stderr
    assert os.listdir(target) == []
    allowed = program("prepare", "--allow-disk", folder, target)
    assert allowed.returncode == 0, allowed.stderr
    assert sorted(os.listdir(target)) == COMPLETE


def test_a_model_that_no_agent_looked_at_needs_a_flag(program: Program, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("")
    result = program("prepare", folder, tmp_path / "out")
    assert result.returncode == 1
    assert "no agent looked at model 'llama'" in result.stderr
    assert program("prepare", "--allow-unchecked", folder, tmp_path / "out").returncode == 0
    assert "model.safetensors.age" in os.listdir(tmp_path / "out")


def test_a_directory_with_files_of_someone_else_is_left_alone(program: Program, folder: Path, memory: Path) -> None:
    (memory / "precious").write_text("x")
    result = program("prepare", folder, memory)
    assert result.returncode == 1
    assert "holds files that were not put there by this command, such as 'precious'" in result.stderr
    assert os.listdir(memory) == ["precious"]


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "repoagent+file://{}", "{}/../llama/"])
def test_a_model_that_lies_in_the_directory_is_refused_and_stays(program: Program, folder: Path, spelling: str) -> None:
    (folder.parent / MARK).touch()  # as an earlier call has left it, so that all beside it may go
    inside = program("prepare", spelling.format(folder), folder.parent)
    assert inside.returncode == 1
    assert "which is emptied first" in inside.stderr
    assert (folder / "README.md").exists()


@pytest.mark.parametrize("second", ["a", "a/1", "b/../a"])
def test_directories_in_one_another_are_refused(program: Program, folder: Path, memory: Path, second: str) -> None:
    result = program("prepare", folder, memory / "a", folder, f"{memory}/{second}")
    assert (result.returncode, "needs a directory of its own" in result.stderr) == (1, True)
    assert os.listdir(memory) == []


def test_agents_are_given_the_directory_once_the_result_is_there(
    program: Program, folder: Path, memory: Path, tmp_path: Path
) -> None:
    methods = (
        "    def load(self, model):\n"
        "        place = model.acquire_location(confidential=True)\n"
        "        (place / 'weights').write_bytes(b'secret')\n"
        "        model.update_location(place)\n\n"
        "    def model_action(self, model, action):\n"
        "        if action.name == 'LOAD':\n"
        "            return self.load(model)\n"
        f"        with open({str(tmp_path / 'notes')!r}, 'a') as file:\n"
        "            print(action.name, model.location, os.listdir(model.location), file=file)\n"
        "        if action.name == 'UNLOAD_COMPLETE':\n"
        "            model.release_location()\n"
    )
    where = agent(tmp_path, "mover", methods)
    (tmp_path / "policy.toml").write_text('[[rule]]\nmodels = ["*"]\nbefore = ["mover"]\n')
    result = program("prepare", where, folder, memory)
    assert result.returncode == 0, result.stderr
    lines = [line.split(maxsplit=2) for line in (tmp_path / "notes").read_text().splitlines()]
    assert [one[0] for one in lines] == ["LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]
    assert all(place == str(memory) and "'weights'" in listed for _, place, listed in lines)
    assert tree(memory) == {"weights": b"secret", MARK: b""}


def test_every_flag_is_a_variable_too(flags: list[str], folder: Path, memory: Path, tmp_path: Path, warm: Warm) -> None:
    names = {flag.partition("=")[0]: flag.partition("=")[2] or "1" for flag in flags}
    variables = {"REPOAGENT_PREPARE_" + name[2:].replace("-", "_").upper(): value for name, value in names.items()}
    environment = {"PATH": os.environ["PATH"], **variables, "REPOAGENT_PREPARE_AUDIT_LOG": str(tmp_path / "audit")}
    result = warm.run(["prepare", f"{folder}/", memory], env=environment)
    assert result.returncode == 0, result.stderr
    lines = (tmp_path / "audit").read_text().splitlines()
    assert [(line.count('"load"'), line.count('"unload"'), line.count('"loaded"')) for line in lines][-3:] == [
        (1, 0, 1),
        (0, 1, 0),
        (0, 1, 0),
    ]


def test_a_rule_about_backends_refuses_unless_it_names_the_command(
    program: Program, folder: Path, memory: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'{policy.read_text()}backends = ["onnxruntime"]\n')
    result = program("prepare", folder, memory)
    assert result.returncode == 1
    assert "neither judges a command" in result.stderr
    policy.write_text(f'{policy.read_text()}commands = ["prepare"]\n')
    assert program("prepare", folder, memory).returncode == 0


@pytest.mark.parametrize("arguments", [["one"], ["one", "two", "three"], []])
def test_arguments_that_are_no_pairs_are_a_wrong_command_line(program: Program, arguments: list[str]) -> None:
    assert program("prepare", *arguments).returncode == 2


def test_the_prefix_of_a_url_is_taken_away(program: Program, folder: Path, memory: Path) -> None:
    result = program("prepare", f"repoagent+file://{folder}", memory)
    assert result.returncode == 0, result.stderr


HALF = (
    "    def load(self, model):\n"
    "        place = model.acquire_location(confidential=True)\n"
    "        (place / 'half').write_bytes(b'secret')\n"
    "        print('half', flush=True)\n"
    "        while os.path.exists({stop!r}) and not model.cancelled:\n"
    "            time.sleep(0.01)\n"
    "        (place / 'whole').write_bytes(b'secret')\n"
    "        model.update_location(place)\n"
)
Halfway = Callable[[], Started]


@pytest.fixture
def halfway(flags: list[str], folder: Path, memory: Path, tmp_path: Path, warm: Warm) -> Halfway:
    """Start the command over an agent that writes half of its result and waits while the file ``stop`` is there."""
    where = agent(tmp_path, "half", HALF.format(stop=str(tmp_path / "stop")))
    (tmp_path / "policy.toml").write_text('[[rule]]\nmodels = ["*"]\nbefore = ["half"]\n')

    def start() -> Started:
        words: list[str | Path] = ["prepare", *flags, where, folder, memory]
        child = warm.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        return child

    return start


def test_after_a_kill_in_the_middle_the_next_call_gives_the_whole(
    halfway: Halfway, memory: Path, tmp_path: Path
) -> None:
    (tmp_path / "stop").touch()
    child = halfway()
    child.kill()
    child.communicate()
    assert not {"half", "whole"} & set(os.listdir(memory))
    (tmp_path / "stop").unlink()
    child = halfway()
    output, errors = child.communicate()
    assert child.returncode == 0, output + errors
    assert tree(memory) == {"half": b"secret", "whole": b"secret", MARK: b""}


def test_a_signal_to_stop_leaves_nothing_and_is_the_status(halfway: Halfway, memory: Path, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    child = halfway()
    child.send_signal(signal.SIGTERM)
    child.communicate()
    assert child.returncode == 128 + signal.SIGTERM
    assert os.listdir(memory) == []


def test_two_calls_at_once_do_not_mix(
    halfway: Halfway, program: Program, folder: Path, memory: Path, tmp_path: Path
) -> None:
    (tmp_path / "stop").touch()
    child = halfway()
    result = program("prepare", folder, memory)
    assert result.returncode == 1
    assert "another process prepares a model in" in result.stderr
    (tmp_path / "stop").unlink()
    child.communicate()
    assert child.returncode == 0
    assert "whole" in os.listdir(memory)


def test_what_another_process_has_in_the_directory_stays(
    program: Program, flags: list[str], folder: Path, memory: Path
) -> None:
    """As in the ``/dev/shm`` of a container; truncated, it would have ended a server that maps it."""
    assert program("prepare", folder, memory).returncode == 0
    words = [sys.executable, "-m", "repoagent", "run", *flags, f"--confidential-directory={memory}", str(folder)]
    words += ["--", "sh", "-c", 'echo go; read go; cat "$0"/config.json', "{model}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "go\n"
        result = program("prepare", folder, memory)
        assert "another process has a model in" in result.stderr
        assert result.returncode == 1
        assert child.communicate("go\n", timeout=60)[0].encode() == PLAIN["config.json"]
    assert program("prepare", folder, memory).returncode == 0
    assert sorted(os.listdir(memory)) == COMPLETE


SIZE = sum(map(len, PLAIN.values()))
OnSmall = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def on_small(flags: list[str], tmp_path: Path) -> OnSmall:
    """Run the program in a namespace with a tmpfs of these options at ``mnt``, and then print its files."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here (unshare -m)")
    target = tmp_path / "mnt"
    target.mkdir()

    def run(options: str, command: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        script = f'mount -t tmpfs -o mode=700,{options} tmpfs {target} && "$@"; status=$?; find {target} -type f'
        words = [sys.executable, "-m", "repoagent", command, *flags, *map(str, arguments)]
        return subprocess.run(
            ["unshare", "-m", "bash", "-c", f"{script}; exit $status", "sh", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_there_is_one_copy_at_the_peak(on_small: OnSmall, folder: Path, tmp_path: Path) -> None:
    """On a filesystem that two copies do not fit on."""
    result = on_small(f"size={SIZE * 3 // 2}", "prepare", folder, tmp_path / "mnt")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert sorted(os.path.relpath(line, tmp_path / "mnt") for line in lines if line[0] == "/") == COMPLETE


@pytest.mark.parametrize("options", [f"size={SIZE // 2}", f"size={2 * SIZE},nr_inodes=4"])
@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "{folder}", "{full}"],
        ["prepare", "--allow-unchecked", "--agent-policy=/dev/null", "{folder}", "{full}"],
        [
            "prepare",
            "--workspace-directory={full}",
            "--agent-policy={tmp_path}/verify.toml",
            "{folder}",
            "{memory}/out",
        ],
        [
            "run",
            "--workspace-directory={full}",
            "--agent-policy={tmp_path}/verify.toml",
            "{folder}",
            "--",
            "touch",
            "{tmp_path}/started",
        ],
        ["run", "--confidential-directory={full}", "{folder}", "--", "touch", "{tmp_path}/started"],
    ],
    ids=["plaintext", "a copy", "its workspace", "workspace of run", "plaintext of run"],
)
def test_a_filesystem_that_is_full_refuses_the_model(
    on_small: OnSmall, folder: Path, memory: Path, tmp_path: Path, words: list[str], options: str
) -> None:
    policy = (tmp_path / "policy.toml").read_text()
    (tmp_path / "verify.toml").write_text(re.sub(', { agent = "decrypt".*', "]", policy))
    places = {"full": tmp_path / "mnt", "folder": folder, "memory": memory, "tmp_path": tmp_path}
    result = on_small(options, *(word.format(**places) for word in words))
    assert result.returncode == 1, result.stderr
    assert re.search("o space left on|bytes free$", result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert "/proc/self/fd" not in result.stderr
    left = [line for line in result.stdout.splitlines() if line.startswith(str(places["full"]))]
    assert [file for file in left if not file.endswith(".lock")] == []
    assert not (tmp_path / "started").exists()
    assert left_in(memory) == []


def test_a_mount_over_the_directory_meanwhile_gets_nothing(
    on_small: OnSmall, folder: Path, memory: Path, tmp_path: Path
) -> None:
    mount = f"    def load(self, model):\n        assert not os.system('mount -t tmpfs -o mode=700 tmpfs {memory}')\n"
    where = agent(tmp_path, "mounts", mount)
    (tmp_path / "policy.toml").write_text('[[rule]]\nmodels = ["*"]\nbefore = ["mounts"]\n')
    result = on_small("size=1m", "prepare", where, folder, memory)
    assert result.returncode == 1
    assert f"{memory} was replaced by another directory meanwhile" in result.stderr
    assert os.listdir(memory) == []
