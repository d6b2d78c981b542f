"""A bucket of more objects than one listing holds."""

import uuid
from collections.abc import Callable

import pytest

Fetch = Callable[..., dict[str, bytes]]
COUNT = 60


@pytest.fixture
def bucket(s3_endpoint: str, s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A listing of S3 has a thousand objects at most; of this server, 25."""
    import s3fs
    from moto.backends import get_backend  # takes a second, which a collection need not spend

    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "25")
    name = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(endpoint_url=s3_endpoint, use_listings_cache=False).mkdir(name)
    backend = get_backend("s3")["123456789012"]["aws"]  # the server runs in this process
    for number in range(COUNT):
        backend.put_object(name, f"m/{number % 50}/{number}", b"%d" % number)
    return f"s3://{s3_endpoint}/{name}/m"


@pytest.mark.slow
def test_all_of_them_come(fetch: Fetch, bucket: str) -> None:
    expected = {f"1/{number % 50}/{number}": b"%d" % number for number in range(COUNT)}
    assert fetch({"url": bucket, "floating": "true"}) == expected
