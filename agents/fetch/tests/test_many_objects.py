"""A bucket of more objects than one listing holds."""

import uuid
from collections.abc import Callable

import pytest
from moto.backends import get_backend

Fetch = Callable[..., dict[str, bytes]]
COUNT = 1200


@pytest.fixture
def bucket(s3_endpoint: str, s3_credentials: None) -> str:
    """A listing of S3 has a thousand objects at most."""
    import s3fs

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
