from pathlib import Path

from repoagent.server.exposition.page import Machine
from tests.descriptors import no_descriptors


def _write(proc: Path, *, idle: int, busy: int) -> None:
    (proc / "self").mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n")
    (proc / "self" / "statm").write_text("100 1 1 1 0 1 0\n")


def _values(machine: Machine) -> dict[str, float]:
    return {family.name: family.samples[0][1] for family in machine.families()}


def test_the_processors_are_measured_between_two_readings(tmp_path: Path) -> None:
    _write(tmp_path, idle=100, busy=100)
    machine = Machine(tmp_path)
    _write(tmp_path, idle=175, busy=125)
    values = _values(machine)
    assert values["nv_cpu_utilization"] == 0.25
    assert values["nv_cpu_memory_total_bytes"] == 1000 * 1024
    assert values["nv_cpu_memory_used_bytes"] == 600 * 1024
    assert values["process_resident_memory_bytes"] >= 4096
    assert _values(machine)["nv_cpu_utilization"] == 0


def test_a_machine_without_proc_has_no_such_metrics(tmp_path: Path) -> None:
    assert _values(Machine(tmp_path / "none")) == {}


def test_where_no_file_can_be_opened_these_metrics_are_missing_and_no_others() -> None:
    """A server that has run out of descriptors is one whose metrics are wanted."""
    machine = Machine()
    with no_descriptors():
        assert _values(machine) == {}
    assert _values(machine)["nv_cpu_memory_total_bytes"] > 0
