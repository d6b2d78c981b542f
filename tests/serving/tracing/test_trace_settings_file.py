"""Files of traces when there is no room for them."""

import errno
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from repoagent.serving.tracing.trace_settings import TraceFile


def test_a_full_disk_is_told_once_and_does_not_hinder_the_end(caplog: pytest.LogCaptureFixture) -> None:
    file = TraceFile("/dev/full")
    for _ in range(3):
        file.append(['{"id":1}'])
    file.close()
    assert caplog.messages == ["failed to write traces to '/dev/full', they are lost: No space left on device"]


def test_what_fits_stays_readable_and_goes_on_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [30]

    class SmallDisk(io.FileIO):
        def write(self, data: Any) -> int:
            fitting = bytes(data)[: max(0, room[0] - self.tell())]
            if not fitting:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fitting)

    monkeypatch.setattr(io, "FileIO", SmallDisk)
    path = tmp_path / "trace"
    file = TraceFile(str(path))
    file.append(['{"id":1}', '{"id":2}'])
    file.append(['{"id":3,"much":"more"}'])
    assert json.loads(path.read_text() + "]") == [{"id": 1}, {"id": 2}]
    room[0] = 1000
    file.append(['{"id":4}'])
    room[0] = 0
    file.append(['{"id":5}'])
    room[0] = 1000
    file.close()
    assert json.loads(path.read_text()) == [{"id": 1}, {"id": 2}, {"id": 4}]
    assert len(caplog.messages) == 2  # Once for each time.


def test_files_whose_directory_is_removed_go_on_in_new_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "traces" / "trace"
    path.parent.mkdir()
    file = TraceFile(str(path))
    for number in range(2):
        file.append([f'{{"id":{number}}}'])
        file.append([f'{{"id":{number}}}'])
        file.write_numbered([f'{{"id":{number}}}'])
        if not number:
            shutil.rmtree(path.parent)
    file.close()
    assert json.loads(path.read_text()) == [{"id": 1}, {"id": 1}]
    assert json.loads(path.with_name("trace.1").read_text()) == [{"id": 1}]
    assert len(caplog.messages) == 1
