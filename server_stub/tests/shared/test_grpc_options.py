"""How much memory the process may have: that of the machine, or of the control groups that it is in."""

import os
from pathlib import Path

import pytest
from repoagent_server.shared import grpc_options
from repoagent_server.shared.grpc_options import default_message_bytes, memory_bytes

MIB = 1 << 20
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limited(root: Path, limits: dict[str, str]) -> int:
    """``memory_bytes`` of a process in the group ``/a/b``, with these files below the root of the control groups."""
    for name, text in limits.items():
        file = root / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    own = root / "own"
    own.write_text("12:memory:/elsewhere\n0::/a/b\n")
    return memory_bytes(root / "groups", own)


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"a/b/memory.max": f"{64 * MIB}\n"}, 64 * MIB),
        ({"a/memory.max": f"{32 * MIB}\n", "a/b/memory.max": f"{64 * MIB}\n"}, 32 * MIB),
        ({"memory.max": f"{16 * MIB}\n", "a/b/memory.max": "max\n"}, 16 * MIB),
        ({"memory/memory.limit_in_bytes": f"{48 * MIB}\n"}, 48 * MIB),
    ],
)
def test_the_tightest_limit_of_a_control_group_holds(tmp_path: Path, limits: dict[str, str], size: int) -> None:
    assert limited(tmp_path, limits) == size


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"a/b/memory.max": "max\n"},
        {"a/b/memory.max": "\n"},
        {"a/b/c/memory.max": f"{MIB}\n", "elsewhere/memory.max": f"{MIB}\n"},
        {"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n"},
    ],
)
def test_without_a_limit_of_its_own_groups_the_process_has_the_machine(tmp_path: Path, limits: dict[str, str]) -> None:
    assert limited(tmp_path, limits) == MACHINE


def test_where_nothing_names_the_group_the_limit_at_the_root_holds(tmp_path: Path) -> None:
    """A container sees its own group as the root."""
    (tmp_path / "memory.max").write_text(f"{8 * MIB}\n")
    assert memory_bytes(tmp_path, tmp_path / "missing") == 8 * MIB


@pytest.mark.parametrize(
    ("available", "message"),
    [
        (256 * MIB, 64 * MIB),
        (1024 * MIB, 64 * MIB),
        (1025 * MIB, 1025 * MIB // 16),
        (16 * 1024 * MIB, 1024 * MIB),
        (32 * 1024 * MIB, 2048 * MIB - 1),
        (512 * 1024 * MIB, 2048 * MIB - 1),
    ],
)
def test_a_message_has_a_sixteenth_from_64_mib_to_2_gib(
    monkeypatch: pytest.MonkeyPatch, available: int, message: int
) -> None:
    monkeypatch.setattr(grpc_options, "memory_bytes", lambda: available)
    assert default_message_bytes() == message
