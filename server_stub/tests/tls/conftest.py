"""An authority and a certificate of a server."""

import pytest

from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.issue("server")
