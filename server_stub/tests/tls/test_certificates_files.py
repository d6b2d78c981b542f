"""When certificates end, beside what openssl states of the same files."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from repoagent_server.tls.certificates import CertificateMetrics, Certificates, TlsFiles, earliest_end

from tests.certificates import Authority, Pair

pytestmark = pytest.mark.slow


def _stated(certificate: str) -> float:
    command = ["openssl", "x509", "-enddate", "-noout", "-in", certificate]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return ssl.cert_time_to_seconds(text.removeprefix("notAfter="))


@pytest.mark.parametrize("days", [1, 365, 20_000, 100_000], ids=["a day", "a year", "after 2050", "far away"])
@pytest.mark.parametrize("key", ["ec -pkeyopt ec_paramgen_curve:P-256", "rsa:2048"], ids=["ec", "rsa"])
def test_the_end_is_that_of_openssl(authority: Authority, days: int, key: str) -> None:
    pair = authority.issue(f"end-{days}-{key[:2]}", ("DNS:localhost",), "-days", str(days), key=key)
    assert earliest_end(Path(pair.certificate).read_bytes()) == _stated(pair.certificate)


def test_of_a_chain_the_certificate_counts_that_ends_first(authority: Authority) -> None:
    short = authority.issue("short", ("DNS:localhost",), "-days", "1")
    long = authority.issue("long", ("DNS:localhost",), "-days", "900")
    files = [Path(pair.certificate).read_bytes() for pair in (long, short)]
    for chain in (b"".join(files), b"subject=words between\n".join(reversed(files))):
        assert earliest_end(chain) == _stated(short.certificate)


@pytest.mark.parametrize("damage", ["nothing", "words", "half", "not DER"])
def test_what_cannot_be_read_has_no_end(server_pair: Pair, damage: str) -> None:
    whole = Path(server_pair.certificate).read_bytes()
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
    damaged = {"nothing": b"", "words": b"words", "half": whole[:200], "not DER": begin + b"AAAA\n" + end}
    assert earliest_end(damaged[damage]) is None


def test_no_cut_or_changed_certificate_does_more_than_have_no_end(server_pair: Pair) -> None:
    der = ssl.PEM_cert_to_DER_cert(Path(server_pair.certificate).read_text())
    for place in range(len(der)):
        for changed in (der[:place], der[:place] + b"\xff" + der[place + 1 :], der[:place] + b"\0" + der[place + 1 :]):
            pem = ssl.DER_cert_to_PEM_cert(changed).encode()
            assert isinstance(earliest_end(pem), float | None)


def test_the_metric_follows_new_files(authority: Authority, server_pair: Pair, tmp_path: Path) -> None:
    class Port:
        """A front end."""

        def __init__(self, certificates: Certificates | None) -> None:
            self._certificates = certificates

        @property
        def certificate_end(self) -> float | None:
            return self._certificates.material.end if self._certificates is not None else None

    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(server_pair.certificate, certificate)
    shutil.copy(server_pair.key, key)
    certificates = Certificates(TlsFiles("HTTP", str(certificate), str(key)))
    metrics = CertificateMetrics(lambda: {"http": Port(certificates), "metrics": Port(None)})

    def samples() -> list[object]:
        return [sample for family in metrics.families() for sample in family.samples]

    assert samples() == [((("port", "http"),), _stated(server_pair.certificate))]
    following = authority.issue("following", ("DNS:localhost",), "-days", "900")
    shutil.copy(following.certificate, certificate)
    shutil.copy(following.key, key)
    assert not certificates.look()
    assert certificates.look()
    assert samples() == [((("port", "http"),), _stated(following.certificate))]
