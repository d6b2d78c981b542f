"""A manifest of a few megabytes can name one layer thirty thousand times: what it costs is bounded by what was sent."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.fetch.tests.servers import Hub, Registry, Tracking, tar
from repoagent.errors import RepoAgentError
from repoagent.storage.transfer import localize
from tests.file_server import FileServer, Request

Fetch = Callable[..., dict[str, bytes]]
Refused = Callable[..., None]
LAYER = "application/vnd.oci.image.layer.v1.tar"


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each file that was put somewhere."""
    names: list[str] = []
    place = localize._one

    def seen(file: Any, target: Path, *rest: Any) -> Any:
        names.append(str(target / file.path))
        return place(file, target, *rest)

    monkeypatch.setattr(localize, "_one", seen)
    return names


def test_a_layer_that_is_named_many_times_comes_once_and_is_not_copied(
    fetch: Fetch, registry: Registry, tmp_path: Path, placed: list[str]
) -> None:
    content = os.urandom(1 << 20)
    layer = registry.layer("many", LAYER, tar({"models/model.onnx": content}))
    digest = registry.push("many", [layer] * 50, config="application/vnd.oci.image.config.v1+json")
    assert fetch({"url": f"oci://{registry.host}/many@{digest}"}) == {"1/model.onnx": content}
    assert len(placed) == 1
    assert Path(placed[0]).is_relative_to(tmp_path / "cache"), "a copy outside of the cache"


@pytest.mark.slow
def test_layers_do_not_get_an_allowance_each(refused: Refused, registry: Registry) -> None:
    """64 MiB are free for all together: a thousand small layers would unpack to 64 GB."""
    layers = [
        registry.layer("evil", f"{LAYER}+gzip", gzip.compress(tar({f"models/{n}": bytes(40 << 20)}))) for n in range(3)
    ]
    refused(layers, "unpack to more than a hundred times their size")


@pytest.mark.slow
def test_a_layer_that_is_named_again_unpacks_from_the_same_allowance(refused: Refused, registry: Registry) -> None:
    layer = registry.layer("evil", f"{LAYER}+gzip", gzip.compress(tar({"models/x": bytes(10 << 20)})))
    refused([layer] * 10, "unpack to more than a hundred times their size")


def test_headers_that_announce_headers_are_refused(refused: Refused, registry: Registry) -> None:
    """The library follows them by recursion."""
    info = tarfile.TarInfo("models/x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    header = info.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    refused([registry.layer("evil", LAYER, header * 2000)], "not a valid archive")


@pytest.mark.parametrize("size", [-1, -512, -513, -(1 << 40)])
def test_a_file_of_less_than_nothing_is_refused(refused: Refused, registry: Registry, size: int) -> None:
    """The library takes it for a position to go on from, which may lie before this one."""
    info = tarfile.TarInfo("models/x")
    info.size = size
    archive = info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    refused([registry.layer("evil", LAYER, archive)], "not a valid archive|no file")


@pytest.mark.slow
def test_a_name_of_gzip_without_end_is_refused(refused: Refused, registry: Registry) -> None:
    """The library reads it byte by byte, and a layer may have a terabyte."""
    header = b"\x1f\x8b\x08\x08" + bytes(6)
    refused([registry.layer("evil", f"{LAYER}+gzip", header + b"n" * (3 << 20))], "a header without end")


def test_what_is_damaged_in_the_middle_of_a_file_is_refused(refused: Refused, registry: Registry) -> None:
    packed = bytearray(gzip.compress(tar({"models/x": os.urandom(3 << 20)})))
    packed[len(packed) // 2 :] = b"\xff" * (len(packed) // 2)
    refused([registry.layer("evil", f"{LAYER}+gzip", bytes(packed))], "not a valid archive")


def test_sizes_that_extended_headers_give_are_held_against_the_file(refused: Refused, registry: Registry) -> None:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("models/x")
        info.pax_headers = {"size": str(1 << 50)}
        archive.addfile(info)
    refused([registry.layer("evil", LAYER, output.getvalue())], "not a valid archive")


# Names in an archive that no directory can hold, or that a clean-up cannot follow.


@pytest.mark.parametrize(
    "name",
    ["d/" * 1500 + "x", "d/" * 129 + "x", "n" * 256, "d/" + "\N{SNOWMAN}" * 100 + "/x", "n\udcff"],
    ids=["1500 directories", "129 directories", "a long name", "a long name of few letters", "not UTF-8"],
)
def test_they_are_refused_and_nothing_stays(
    refused: Refused, registry: Registry, tmp_path: Path, name: str, caplog: Any
) -> None:
    refused([registry.layer("evil", LAYER, tar({f"models/{name}": b"x"}))], "is not a plain path")
    assert [entry for entry in os.listdir(tmp_path / "cache" / "objects") if entry.startswith(".")] == []
    assert str(tmp_path) not in caplog.text.partition("raised in LOAD")[2]


# Answers that are small on the wire and large in the parser, which stops every thread of the server.


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"0,", b'"a",'], ids=["lists", "objects", "numbers", "texts"])
def test_a_million_values_are_refused_before_they_are_parsed(
    fetch: Fetch, hub: Hub, registry: Registry, monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    body = b"[" + unit * 700_000 + b"0]"

    def answer(request: Request) -> bool:
        request.answer(200, body)
        return True

    with Tracking() as tracking:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        servers: list[FileServer] = [hub, registry, tracking]
        for server in servers:
            server.handlers.insert(0, answer)
        for url in (
            f"hf://acme/m@{hub.commit}",
            "models:/fraud@champion",
            f"oci://{registry.host}/m@sha256:{'0' * 64}",
        ):
            with pytest.raises(RepoAgentError, match="more than 500000 values"):
                fetch({"url": url, "floating": "true"})


def test_a_listing_that_goes_on_and_on_ends_with_its_load(
    fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page may take a minute, and there may be a thousand."""

    def page(request: Request) -> bool:
        request.answer(200, b"[]", {"Link": f'<{hub.url}{request.path}>; rel="next"'})
        return True

    def folder(request: Request) -> bool:
        if request.target.endswith("/artifacts"):
            request.answer(200, b'{"files": [{"path": "deeper", "is_dir": true}]}')
        return request.target.endswith("/artifacts")

    with Tracking() as tracking:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        servers: list[tuple[FileServer, str]] = [(hub, f"hf://acme/m@{hub.commit}"), (tracking, "models:/fraud/3")]
        hub.handlers.insert(0, page)
        tracking.handlers.insert(0, folder)
        for server, url in servers:
            with pytest.raises(RepoAgentError, match=r"cancelled while .* was listed"):
                fetch({"url": url, "floating": "true"}, cancelled=lambda server=server: len(server.requests) > 5)
            assert len(server.requests) < 10
