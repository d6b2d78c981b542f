"""T3: a file of a model is replaced by a link in the moment between the look at it and its opening."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.transfer.download_file import download_file
from repoagent.storage.transfer.partial_file import PartialFile
from repoagent.storage.transfer.streams import (
    SEGMENT,
    ByteStream,
    DownloadContext,
    RemoteFile,
    WrongDigestError,
    fsspec_opener,
    web_opener,
)
from repoagent.web import Hosts, WebClient
from tests.file_server import FileServer, Request
from tests.hostile.conftest import SECRET, NewCore, Swap
from tests.onnx_models import floats, model_bytes
from tests.storage.digests import digest_of

CONFIG = """
backend: "onnxruntime" name: "m"
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] label_filename: "labels.txt" }
"""


def identity_model() -> bytes:
    return model_bytes([helper.make_node("Identity", ["x"], ["y"])], floats("x", shape=[4]), floats("y", shape=[4]))


@pytest.fixture
def model(repository: Path) -> Path:
    directory = repository / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(identity_model())
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / "labels.txt").write_text("a\nb\nc\nd\n")
    return directory


def to_link(path: Path, target: Path) -> Callable[[], None]:
    def swap() -> None:
        path.unlink()
        path.symlink_to(target)

    return swap


def directory_to_link(path: Path, target: Path) -> Callable[[], None]:
    def swap() -> None:
        path.rename(path.with_name("aside"))
        path.symlink_to(target)

    return swap


def refuses(core: ServingCore) -> str:
    """The error of a load, which must not have what lies outside."""
    with pytest.raises(RepoAgentError) as raised:
        core.load("m")
    assert SECRET.decode() not in str(raised.value)
    assert not core.model_ready("m")
    return str(raised.value)


def test_a_file_with_labels(model: Path, outside: Path, new_core: NewCore, at_open: Swap) -> None:
    at_open("labels.txt", to_link(model / "labels.txt", outside))
    refuses(new_core())


@pytest.mark.parametrize("moment", ["texts", "key.txt"])
def test_a_directory_on_the_way_to_the_labels(
    moment: str, model: Path, outside: Path, new_core: NewCore, at_open: Swap
) -> None:
    """Swapped before the directory is opened the load is refused; later it reads on in the one that it opened."""
    (model / "texts").mkdir()
    (model / "labels.txt").rename(model / "texts" / "key.txt")
    (model / "config.pbtxt").write_text(CONFIG.replace("labels.txt", "texts/key.txt"))
    at_open(moment, directory_to_link(model / "texts", outside.parent))
    core = new_core()
    if moment == "texts":
        refuses(core)
        return
    core.load("m")
    request = InferRequest(Asked("m", {"x": Tensor.of(np.zeros(4, np.float32))}))
    core.infer(request)
    assert request.classes is not None
    assert request.classes.label("y", 0) == b"a"


def test_the_configuration(model: Path, outside: Path, new_core: NewCore, at_open: Swap) -> None:
    outside.write_text(CONFIG + "# of somebody else")
    at_open("config.pbtxt", to_link(model / "config.pbtxt", outside))
    refuses(new_core())


def test_the_model_itself(model: Path, outside: Path, new_core: NewCore, at_open: Swap) -> None:
    outside.write_bytes(identity_model())
    at_open("model.onnx", to_link(model / "1" / "model.onnx", outside))
    refuses(new_core())


def test_the_data_of_a_warm_up(model: Path, outside: Path, new_core: NewCore, at_open: Swap) -> None:
    (model / "warmup").mkdir()
    np.zeros(4, np.float32).tofile(model / "warmup" / "data.bin")
    with (model / "config.pbtxt").open("a") as file:
        file.write(
            'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: [4] '
            'input_data_file: "data.bin" } } }'
        )
    at_open("data.bin", to_link(model / "warmup" / "data.bin", outside))
    refuses(new_core())


def test_weights_that_onnx_runtime_opens_by_their_path(
    model: Path, outside: Path, new_core: NewCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library opens a name itself: that it led elsewhere for a moment is seen afterwards."""
    loaded = onnx.load_model_from_string(identity_model())
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="w.bin")
    loaded.graph.initializer.append(weights)
    loaded.graph.node[0].op_type = "Add"
    loaded.graph.node[0].input.append("w")
    (model / "1" / "model.onnx").write_bytes(loaded.SerializeToString())
    np.zeros(4, np.float32).tofile(model / "1" / "w.bin")
    core = new_core()
    core.load("m")
    core.unload("m")
    from repoagent.serving.backends.onnxruntime import session as sessions

    inner = sessions._made

    def flipped(name: str, source: bytes, options: object, choices: Any) -> object:
        kept = model / "1" / "kept"
        (model / "1" / "w.bin").rename(kept)
        shutil.copy(outside, model / "1" / "w.bin")
        session = inner(name, source, options, choices)
        kept.rename(model / "1" / "w.bin")
        return session

    monkeypatch.setattr(sessions, "_made", flipped)
    assert "changed while it was read" in refuses(core)


@pytest.fixture
def encrypted(model: Path, tmp_path: Path) -> str:
    """The model encrypted, and the policy that demands its decryption; the labels are in plain text."""
    identity = X25519Identity.generate()
    key = tmp_path / "model.key"
    key.write_text(identity.export())
    encrypt_file(model / "1" / "model.onnx", model / "1" / "model.onnx.age", [identity.recipient])
    (model / "1" / "model.onnx").unlink()
    return (
        '[[rule]]\nmodels = ["*"]\nmode = "enforce"\n'
        f'before = [{{ agent = "decrypt", parameters = {{ identity = "file:{key}" }} }}]\n'
    )


def test_a_file_beside_encrypted_ones_under_a_policy(
    model: Path, outside: Path, encrypted: str, new_core: NewCore, at_open: Swap
) -> None:
    core = new_core(policy=encrypted, allow_swap=True)
    core.load("m")
    core.unload("m")
    at_open("labels.txt", to_link(model / "labels.txt", outside))
    refuses(core)


def test_a_file_beside_encrypted_ones_without_a_policy(
    model: Path, outside: Path, encrypted: str, new_core: NewCore, at_open: Swap, tmp_path: Path
) -> None:
    with (model / "config.pbtxt").open("a") as file:
        file.write(
            'model_repository_agents { agents [{ name: "decrypt" parameters { key: "identity" '
            f'value: "file:{tmp_path / "model.key"}" }} }}] }}'
        )
    core = new_core(allow_swap=True)
    core.load("m")
    core.unload("m")
    at_open("labels.txt", to_link(model / "labels.txt", outside))
    refuses(core)


def test_what_a_demanded_agent_saw_is_what_is_loaded(
    model: Path, outside: Path, encrypted: str, new_core: NewCore, tmp_path: Path
) -> None:
    core = new_core(policy=encrypted, allow_swap=True)
    core.load("m")
    report = core.report("m")
    assert report is not None
    assert any("private snapshot" in note for entry in report.entries for one in entry.actions for note in one.notes)


# A store that reports a size that no file has.

CONTENT = b"weights" * 1000
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@contextmanager
def unfinished(path: Path) -> Iterator[PartialFile]:
    one = PartialFile(path, "w", provable=False)
    yield one
    one.close()


class Lying:
    """A filesystem of one file, whose size is what a test wants it to be."""

    def __init__(self, size: Any) -> None:
        self._size = size
        self._fs = fsspec.filesystem("memory", skip_instance_cache=True)
        self._fs.pipe_file("/lying/w", CONTENT)

    def size(self, _path: str) -> Any:
        return self._size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)


@pytest.mark.parametrize("digest", ["", DIGEST])
@pytest.mark.parametrize("listed", [True, False])
def test_a_negative_size_is_refused(tmp_path: Path, digest: str, listed: bool) -> None:
    fs = Lying(-5)
    size = -5 if listed else None
    file = RemoteFile("w", "x://w", fsspec_opener(fs, "/lying/w", size), size, digest=digest)
    with unfinished(tmp_path / "part") as into, pytest.raises(InvalidArgumentError, match="reported to have -5 bytes"):
        download_file(file, into, DownloadContext(2), most=1 << 30)


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_a_size_beyond_the_limit_is_refused_before_anything_is_read(tmp_path: Path, size: int) -> None:
    file = RemoteFile("w", "x://w", fsspec_opener(Lying(size), "/lying/w", None), digest=DIGEST)
    with unfinished(tmp_path / "part") as into, pytest.raises(InvalidArgumentError, match="the limit is 1073741824"):
        download_file(file, into, DownloadContext(2), most=1 << 30)


def test_a_store_that_knows_no_size_is_read_whole(tmp_path: Path) -> None:
    file = RemoteFile("w", "x://w", fsspec_opener(Lying(None), "/lying/w", None), digest=DIGEST)
    with unfinished(tmp_path / "part") as into:
        assert download_file(file, into, DownloadContext(2), most=1 << 30)[1] == len(CONTENT)


@pytest.mark.parametrize("tag", ["", 'W/"1"'])
@pytest.mark.parametrize("pinned", [False, True])
def test_ranges_of_two_contents_are_not_joined_where_no_tag_tells_them_apart(
    tag: str, pinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server puts another file of the same size in its place after two answers, and reports no change."""
    before, after = (bytes([letter]) * (3 * SEGMENT) for letter in b"ab")
    with FileServer({"/w": before}) as server, unfinished(tmp_path / "part") as into:
        monkeypatch.setattr(server, "tags", bool(tag))
        monkeypatch.setattr(server, "tag_of", lambda *_: tag)

        def change(_request: Request) -> bool:
            if len(server.requests) > 2:
                server.files["/w"] = after
            return False

        server.handlers.append(change)
        client = WebClient(Hosts([server.host]))
        digest = digest_of(before) if pinned else ""
        file = RemoteFile("w", f"{server.url}/w", web_opener(client, f"{server.url}/w"), digest=digest)
        if pinned:
            with pytest.raises(WrongDigestError):
                download_file(file, into, DownloadContext(2), most=1 << 30)
        else:
            download_file(file, into, DownloadContext(2), most=1 << 30)
            assert into.path.read_bytes() in (before, after)


def test_the_stream_of_an_empty_file_asks_for_no_range(tmp_path: Path) -> None:
    asked: list[str] = []

    class Empty(Lying):
        def cat_file(self, *_: Any, **__: Any) -> bytes:
            asked.append("range")
            return b""

    opener = fsspec_opener(Empty(0), "/lying/w", None)
    stream: ByteStream
    with opener(0, 8) as stream:
        assert (stream.size, stream.readinto(memoryview(bytearray(8)))) == (0, 0)
    assert asked == []
