"""Plans, and what lies beside them, of an owner who means harm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from repoagent.config import normalize, read_text
from repoagent.engines.plan_header import PlanHeader
from repoagent.engines.protocol import EngineOptions
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.serving.assembly import ControlMode, CoreOptions
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend
from repoagent.serving.core import ServingCore
from tests.engines.models import add_sub, make, matmul
from tests.engines.platforms import new_platform
from tests.engines.standin import StandInEngine, StandInPlatform
from tests.serving.backends.tensorrt.kit import GPU, files_of, load, plan, rows

PLAN = plan(matmul(), rows(1, 4, x=(4,)))


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServingCore]:
    monkeypatch.setattr("repoagent.engines.cuda.find_platform", StandInPlatform)
    (tmp_path / "models").mkdir()
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
        repoagent_directory=None,
    )
    with ServingCore(options) as core:
        yield core


def _model(tmp_path: Path, config: str = "") -> Path:
    version = tmp_path / "models/m/1"
    version.mkdir(parents=True)
    (tmp_path / "models/m/config.pbtxt").write_text(f'backend: "tensorrt" {config}')
    return version


def _refusal(core: ServingCore) -> str:
    with pytest.raises(RepoAgentError) as caught:
        core.load("m")
    assert core.live()
    return str(caught.value)


def test_a_plan_outside_of_the_model_is_not_opened(core: ServingCore, tmp_path: Path) -> None:
    (tmp_path / "secret.plan").write_bytes(PLAN)
    _model(tmp_path, 'default_model_filename: "../../../secret.plan"')
    assert "default_model_filename" in _refusal(core)


def test_a_link_to_a_plan_outside_is_not_followed(core: ServingCore, tmp_path: Path) -> None:
    (tmp_path / "secret.plan").write_bytes(PLAN)
    (_model(tmp_path) / "model.plan").symlink_to(tmp_path / "secret.plan")
    assert "model.plan" in _refusal(core)


def test_a_link_to_a_statement_outside_is_not_followed(core: ServingCore, tmp_path: Path) -> None:
    version = _model(tmp_path)
    (version / "model.plan").write_bytes(PLAN)
    (tmp_path / "secret.json").write_text('{"subject": "the secret"}')
    (version / "model.plan.intoto.json").symlink_to(tmp_path / "secret.json")
    assert "the secret" not in _refusal(core)


def test_a_directory_in_the_place_of_a_plan_is_refused(core: ServingCore, tmp_path: Path) -> None:
    (_model(tmp_path) / "model.plan").mkdir()
    assert "model.plan" in _refusal(core)


@pytest.mark.parametrize("statement", [b"{", b"[" * 100_000, b'{"subject": [{"name": "model.plan", "digest": {}}]}'])
def test_a_statement_that_is_none_refuses_the_load(core: ServingCore, tmp_path: Path, statement: bytes) -> None:
    version = _model(tmp_path)
    (version / "model.plan").write_bytes(PLAN)
    (version / "model.plan.intoto.json").write_bytes(statement)
    assert "model.plan.intoto.json is not a valid statement" in _refusal(core)


@pytest.mark.parametrize("profile", ["-1", "1", "0x0", "99999999999999999999", "9" * 5000, "²"])
def test_a_profile_that_is_not_there_is_refused(core: ServingCore, tmp_path: Path, profile: str) -> None:
    version = _model(tmp_path, f'instance_group {{ kind: KIND_GPU profile: "{profile}" }}')
    (version / "model.plan").write_bytes(PLAN)
    assert "profile" in _refusal(core)


def test_a_model_cannot_allow_its_own_code_for_the_host(core: ServingCore, tmp_path: Path) -> None:
    opened: list[EngineOptions] = []

    class Noting(StandInPlatform):
        def open(self, plan: Any, options: EngineOptions) -> StandInEngine:
            opened.append(options)
            return super().open(plan, options)

    noting: Any = Noting()
    backend = TensorRtBackend(platform=noting)
    config = normalize(
        read_text('backend: "tensorrt" parameters { key: "allow-host-code" value { string_value: "true" } }'),
        model_name="m",
        gpus=None,
    )
    backend.auto_complete(config, files_of(PLAN), 1)
    backend.load(normalize(config, gpus=[0]), files_of(PLAN), 1).close()
    assert [options.host_code_allowed for options in opened] == [False, False]


@pytest.mark.parametrize("size", [0, 1, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_size_is_refused(size: int) -> None:
    head = b"vtrt" + bytes(12) + size.to_bytes(8, "little") + bytes((1, 7, 1, 116)) + bytes(100)
    with pytest.raises(InvalidArgumentError, match=r"cut off|followed by something else"):
        PlanHeader.of(head)


def test_a_batch_that_no_memory_holds_is_refused_at_load() -> None:
    content = plan(matmul(), rows(1, 2**40, x=(4,)))
    platform = StandInPlatform(memory_bytes=1 << 20)
    config, model = load(content, "max_batch_size: 2147483647", platform)
    assert config.max_batch_size == 2147483647
    with pytest.raises(UnavailableError, match="1048576 bytes left, and"):
        model.create_instance(GPU)
    assert platform.device(0).allocations == 0


def test_a_batch_that_no_configuration_can_hold_becomes_the_largest_that_one_can() -> None:
    config, _ = load(plan(matmul(), rows(1, 2**40, x=(4,))), platform=StandInPlatform(memory_bytes=1 << 20))
    assert config.max_batch_size == 2**31 - 1


@pytest.mark.parametrize("name", ["in\nI1123 12:00:00 all is well", "\x1b[31mred", "left\u202eright"])
def test_a_tensor_whose_name_would_be_more_than_one_line_of_text_is_refused(name: str) -> None:
    """Names of tensors are in messages to clients, and in logs."""
    nodes = [helper.make_node("Identity", [name], ["y"])]
    shape = ("n", 4)
    model = make(nodes, [(name, TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)])
    with pytest.raises(InvalidArgumentError, match="messages and logs have lines of plain text only") as caught:
        load(plan(model, rows(1, 4, **{name: (4,)})))
    assert str(caught.value).isprintable()


def test_a_plan_that_changes_after_its_configuration_was_completed_is_judged_again() -> None:
    backend = TensorRtBackend(platform=new_platform())
    config = normalize(read_text('backend: "tensorrt"'), model_name="m", gpus=None)
    backend.auto_complete(config, files_of(PLAN), 1)
    config = normalize(config, gpus=[0])
    with pytest.raises(InvalidArgumentError, match="unable to load model 'm'"):
        backend.load(config, files_of(plan(add_sub(), rows(1, 4, a=(3,), b=(3,)))), 1)


def test_what_was_judged_is_what_is_opened() -> None:
    """The bytes are read once: a file that changes in between changes nothing."""
    judged: list[Any] = []
    opened: list[Any] = []

    class Noting(StandInPlatform):
        def check_plan(self, plan: Any, device: int) -> None:
            judged.append(plan)
            super().check_plan(plan, device)

        def open(self, plan: Any, options: EngineOptions) -> StandInEngine:
            opened.append(plan)
            return super().open(plan, options)

    load(PLAN, platform=Noting())
    assert len(opened) == 2
    assert all(one is other for one, other in zip(judged, opened, strict=True))


@pytest.mark.parametrize("settings", [{"allow-host-code": True}, {"runtime-cache-directory": 7}])
def test_settings_of_other_types_than_text_are_read_as_text(settings: Any) -> None:
    TensorRtBackend(settings, platform=new_platform())


@pytest.mark.parametrize("settings", [{"allow-host-code": 1}, {"allow-host-code": None}])
def test_settings_that_make_no_sense_as_text_are_refused(settings: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be"):
        TensorRtBackend(settings, platform=new_platform())
