"""A bucket of more objects than one listing holds."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from moto.backends import get_backend
from moto.server import ThreadedMotoServer

Fetch = Callable[..., dict[str, bytes]]
COUNT = 1200


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A listing of S3 has a thousand objects at most."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        import s3fs

        host, port = server.get_host_and_port()
        name = f"bucket-{uuid.uuid4().hex}"
        s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}", use_listings_cache=False).mkdir(name)
        backend = get_backend("s3")["123456789012"]["aws"]  # the server runs in this process
        for number in range(COUNT):
            backend.put_object(name, f"m/{number % 50}/{number}", b"%d" % number)
        yield f"s3://http://{host}:{port}/{name}/m"
    finally:
        server.stop()


@pytest.mark.slow
def test_all_of_them_come(fetch: Fetch, bucket: str) -> None:
    expected = {f"1/{number % 50}/{number}": b"%d" % number for number in range(COUNT)}
    assert fetch({"url": bucket, "floating": "true"}) == expected
