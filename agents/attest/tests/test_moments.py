"""Moments at which a receipt could come to lie: a full disk, a log that is rotated, a clock set back, loads at once."""

import errno
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import repoagent_attest.attestor
from repoagent_attest import statements

from agents.attest.tests.conftest import NewLoader
from agents.attest.tests.test_receipts import payload
from repoagent.api import replace_file
from repoagent.api.envelopes import to_json
from repoagent.audit.log import AuditLog
from repoagent.config import ModelConfig
from repoagent.errors import UnavailableError
from repoagent.storage.repositories.sources import open_source


def _full_at(monkeypatch: pytest.MonkeyPatch, full: Callable[[Path], bool]) -> None:
    def write(path: Path, data: bytes) -> None:
        if full(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        replace_file(path, data)

    monkeypatch.setattr(repoagent_attest.attestor, "replace_file", write)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("suffix", [".load.json", ".vsa.json"])
def test_a_disk_that_is_full_at_either_file_leaves_neither(
    suffix: str, required: bool, new_loader: NewLoader, receipts: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Details alone would state that a model passed, of which no summary knows."""
    chain = new_loader(required=required).load(open_source("m", str(model)))
    _full_at(monkeypatch, lambda path: path.name.endswith(suffix))
    if not required:
        chain.attest([1])
        assert (chain.attestation, list(receipts.iterdir())) == (None, [])
        return
    with pytest.raises(UnavailableError, match="No space left on device") as caught:
        chain.attest([1])
    assert list(receipts.iterdir()) == []
    _full_at(monkeypatch, lambda _: False)
    chain.fail(caught.value)
    (summary,) = receipts.glob("*.vsa.json")
    assert payload(summary)["predicate"]["verificationResult"] == "FAILED"


@contextmanager
def _mounted(directory: Path, options: str) -> Iterator[None]:
    """A filesystem of its own on ``directory``, by the kernel; only root of this machine or container may do that."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    if (
        os.geteuid()
        or not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _remounted(directory: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(directory)], check=True)


def _bundles(receipts: Path) -> list[str]:
    """Results of the summaries, each of which has its details; nothing else lies beside them."""
    summaries = sorted(receipts.glob("*.vsa.json"))
    expected = {path.name for path in summaries} | {path.name.replace(".vsa.", ".load.") for path in summaries}
    assert {path.name for path in receipts.iterdir()} - {"filler"} == expected
    return sorted(payload(path)["predicate"]["verificationResult"] for path in summaries)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("fault", ["read-only", "full", "full after one file"])
def test_a_directory_that_takes_nothing_more_between_two_loads(
    fault: str, required: bool, new_loader: NewLoader, receipts: Path, model: Path
) -> None:
    """The next load leaves both files or none, and the one after the fault leaves a receipt again."""
    with _mounted(receipts, "size=64k"):
        loader = new_loader(required=required)
        first, second, third = (loader.load(open_source("m", str(model))) for _ in range(3))
        first.attest([1])
        filler = receipts / "filler"
        if fault == "read-only":
            _remounted(receipts, "ro")
        else:
            (details,) = receipts.glob("*.load.json")
            _fill(filler, spare=details.stat().st_size if fault == "full after one file" else 0)
        if required:
            with pytest.raises(UnavailableError, match=r"Read-only file system|No space left on device") as caught:
                second.attest([1])
            second.fail(caught.value)
        else:
            second.attest([1])
        assert second.attestation is None
        assert _bundles(receipts) == ["PASSED"]
        _remounted(receipts, "rw")
        filler.unlink(missing_ok=True)
        third.attest([1])
        assert third.attestation is not None
        assert _bundles(receipts) == ["PASSED", "PASSED"]


def _fill(path: Path, spare: int) -> None:
    """Take all pages of the filesystem but those of a file of ``spare`` bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    with path.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(page))
        file.truncate(file.tell() - -(-spare // page) * page)


@pytest.mark.parametrize("required", [False, True])
def test_a_limit_of_file_sizes_leaves_no_half_of_a_receipt(
    required: bool, new_loader: NewLoader, receipts: Path, model: Path
) -> None:
    chain = new_loader(required=required).load(open_source("m", str(model)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        if required:
            with pytest.raises(UnavailableError, match="File too large"):
                chain.attest([1])
        else:
            chain.attest([1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (chain.attestation, list(receipts.iterdir())) == (None, [])


def test_receipts_and_an_audit_log_that_is_rotated_meanwhile_vouch_for_each_other(
    new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path
) -> None:
    """Files of the log begin anew by their size, with each load, and by another program that renames them."""
    path = tmp_path / "audit.log"
    with closing(AuditLog(path, sync=False, largest=500)) as log:
        loader = new_loader(audit=log)
        for turn in range(4):
            chain = loader.load(open_source("m", str(model)))
            path.rename(tmp_path / f"audit.log.mine-{turn}")
            log.reopen()
            chain.attest([1])
    files = [file for file in tmp_path.glob("audit.log*") if file.suffix != ".head"]
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    hashes = {json.loads(line)["seq"]: sha256(line).hexdigest() for line in lines}
    found = [json.loads(line) for line in lines]
    loaded = {line["what"]["attestation"]: line["seq"] for line in found if "attestation" in line["what"]}
    for details in receipts.glob("*.load.json"):
        head = payload(details)["predicate"]["load"]["audit"]
        summary = details.with_name(details.name.replace(".load.", ".vsa."))
        digest = sha256(_signed(summary)).hexdigest()
        assert (loaded[f"sha256:{digest}"], hashes[head["seq"]]) == (head["seq"] + 1, head["hash"])
    assert len(loaded) == 4


def _signed(path: Path) -> bytes:
    return to_json(payload(path))


def test_a_clock_that_is_set_back_mixes_up_no_receipts(
    new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their order is that of the audit log, whatever time they state."""
    made = []
    with closing(AuditLog(tmp_path / "audit.log")) as log:
        loader = new_loader(audit=log)
        for day in (0, -30, -30):
            moment = datetime.now(UTC) + timedelta(days=day)

            class Clock(datetime):
                @classmethod
                def now(cls, tz: Any = None, moment: datetime = moment) -> Any:
                    return moment

            monkeypatch.setattr(statements, "datetime", Clock)
            monkeypatch.setattr("time.gmtime", lambda moment=moment: moment.timetuple())
            chain = loader.load(open_source("m", str(model)))
            chain.attest([1])
            assert chain.attestation is not None
            made.append(chain.attestation.digest)
    places = {}
    for details in receipts.glob("*.load.json"):
        summary = details.with_name(details.name.replace(".load.", ".vsa."))
        places[sha256(_signed(summary)).hexdigest()] = payload(details)["predicate"]["load"]["audit"]["seq"]
    order = [places[digest] for digest in made]
    assert len(set(made)) == 3
    assert order == sorted(set(order))


def test_two_loads_at_once_state_their_own_configurations(new_loader: NewLoader, receipts: Path, model: Path) -> None:
    loader, together = new_loader(), Barrier(4)

    def load(size: int) -> tuple[str, str]:
        override = ModelConfig(name="m", backend="python", max_batch_size=size) if size else None
        expected = sha256(override.SerializeToString(deterministic=True)).hexdigest() if override else ""
        together.wait()
        chain = loader.load(open_source("m", str(model)), override=override)
        together.wait()
        chain.attest([1])
        assert chain.attestation is not None
        return chain.attestation.digest, expected

    with ThreadPoolExecutor(4) as pool:
        expected = dict(pool.map(load, range(4)))
    assert len(expected) == 4
    for details in receipts.glob("*.load.json"):
        summary = details.with_name(details.name.replace(".load.", ".vsa."))
        stated = payload(details)["predicate"]["load"].get("override_sha256", "")
        assert stated == expected.pop(sha256(_signed(summary)).hexdigest())
        levels = payload(summary)["predicate"]["verifiedLevels"]
        assert ("REPOAGENT_OWN_CONFIGURATION" in levels) is (not stated)
    assert expected == {}
