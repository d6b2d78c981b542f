import socket
from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.web import Hosts, origin_of

NEVER = ["169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "0.0.0.0", "224.0.0.1", "::ffff:169.254.1.1",
         "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::169.254.169.254", "::ffff:0:169.254.169.254", "::",
         "2606:4700::5efe:169.254.169.254", "2606:4700::200:5efe:169.254.169.254", "64:ff9b:1::169.254.169.254",
         "64:ff9b:1:a9fe:a9:fe00::", "2001:0:a9fe:a9fe::", "2001:0:101:101::5601:5601"]  # fmt: skip
NOT_PUBLIC = ["127.0.0.1", "127.8.8.8", "10.1.2.3", "192.168.0.1", "172.16.0.1", "::1", "fd12::1", "::ffff:127.0.0.1",
              "64:ff9b::7f00:1", "100.64.0.1", "198.18.0.1", "::127.0.0.1", "::10.0.0.1", "::ffff:0:127.0.0.1",
              "2002:7f00:1::1", "2606:4700::5efe:127.0.0.1", "64:ff9b:1::127.0.0.1", "2001:0:101:101::80ff:fffe",
              "::0.0.0.2", "64:ff9b:1::1.1.1.1", "fec0::1", "3fff::1", "5f00::1"]  # fmt: skip


@pytest.mark.parametrize("address", NEVER)
def test_addresses_of_machines_services_are_never_asked_even_if_named(address: str) -> None:
    hosts = Hosts(["metadata", "0.0.0.0/0", "::/0"])
    with pytest.raises(InvalidArgumentError, match="address of the machine's own services"):
        hosts.check(origin_of("http://metadata/"), address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public_must_be_named(address: str) -> None:
    origin = origin_of("https://inside.example:8443/")
    with pytest.raises(
        InvalidArgumentError, match=r"not a public address; .* inside\.example:8443 .* REPOAGENT_FETCH_"
    ):
        Hosts().check(origin, address)
    for named in ("inside.example", "inside.example:8443", "Inside.Example", "0.0.0.0/0, ::/0"):
        Hosts(named.split(",")).check(origin, address)
    for named in ("inside.example:443", "example", "1.0.0.0/8"):
        with pytest.raises(InvalidArgumentError):
            Hosts([named]).check(origin, address)


def test_public_addresses_are_free() -> None:
    for address in ("1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101", "::1.1.1.1", "2002:101:101::1"):
        Hosts().check(origin_of("https://example.org"), address)


def test_one_forbidden_address_of_a_name_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in ("1.1.1.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(InvalidArgumentError, match=r"leads to 127\.0\.0\.1"):
        Hosts().addresses(origin_of("http://rebound.example/"))


def test_a_name_without_an_address_is_reported() -> None:
    with pytest.raises(UnavailableError, match="has no address"):
        Hosts().addresses(origin_of("http://nowhere.invalid/"))


@pytest.mark.parametrize("literal", ["127.0.0.1", "[::1]", "localhost", "x.localhost", "169.254.169.254"])
def test_a_proxy_is_not_asked_for_an_address_that_may_not_be_asked(literal: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Hosts().check_literal(origin_of(f"http://{literal}/"))
    Hosts().check_literal(origin_of("http://example.org/"))


def test_the_environment_names_hosts() -> None:
    environment: Any = {"REPOAGENT_FETCH_HOSTS": " minio.corp:9000 , 10.0.0.0/8,,"}
    hosts = Hosts.from_environment(environment)
    hosts.check(origin_of("http://minio.corp:9000"), "192.168.1.1")
    hosts.check(origin_of("http://other"), "10.9.9.9")
    with pytest.raises(InvalidArgumentError, match="'10/x' is not a valid network"):
        Hosts(["10/x"])


@pytest.mark.parametrize(
    "url",
    ["ftp://host/", "file:///etc/passwd", "http:///x", "http://us:pw@host/", "http://host:99999/", "http://host:0/",
     "http://ho st/", "http://host/\r\nX: y", "http://[::1", "http://ho%00st/", "https://" + "a" * 300 + "/"],
)  # fmt: skip
def test_urls_that_are_not_plain_http_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        origin_of(url)
    assert "pw" not in str(raised.value)
