"""The switch that turns skips of GPU tests into failures."""

import pytest
from _pytest.outcomes import Failed, Skipped

from repoagent.engines.probe import Findings, Gpu
from tests.engines.gpu import need


@pytest.mark.parametrize(("value", "outcome"), [("", Skipped), ("0", Skipped), ("1", Failed)])
def test_what_cannot_run_is_skipped_or_fails(
    monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(need, "_findings", lambda: Findings(problem="CUDA lists no GPU"))
    monkeypatch.setenv(need.MUST_RUN, value)
    with pytest.raises(outcome, match="CUDA lists no GPU"):
        need.need_gpu()


def test_what_can_run_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = Findings("tensorrt_rtx", "1.7", (Gpu(0, "NVIDIA Test", (8, 9), 1),))
    monkeypatch.setattr(need, "_findings", lambda: findings)
    assert need.need_gpu() is findings
