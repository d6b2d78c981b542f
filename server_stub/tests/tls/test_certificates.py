"""Files of TLS that are replaced while a server runs."""

import errno
import logging
import os
import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from repoagent_server.flags.endpoint_flags import take_http_tls
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.tls import certificates as tls_certificates
from repoagent_server.tls.certificates import Certificates, TlsFiles

from repoagent.errors import InvalidArgumentError
from tests.certificates import Authority, Pair


def _copy(pair: Pair, folder: Path) -> TlsFiles:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(pair.certificate, folder / "tls.crt")
    shutil.copy(pair.key, folder / "tls.key")
    return TlsFiles("HTTP", str(folder / "tls.crt"), str(folder / "tls.key"))


def _of(front: str, certificate: str = "", key: str = "", root: str = "", *, mutual: bool = False) -> TlsFiles:
    """The files as the flags of HTTP or of gRPC name them."""
    if front == "gRPC":
        options = GrpcOptions(
            use_ssl=True, server_cert=certificate, server_key=key, root_cert=root, use_mutual_auth=mutual
        )
        files = options.tls_files()
    else:
        named = {"http_server_cert": certificate, "http_server_key": key, "http_root_cert": root}
        switches = {"http_use_ssl": True, "http_use_ssl_mutual": mutual, "metrics_use_ssl": front != "HTTP"}
        tls = take_http_tls({**named, **switches})[0]
        files = tls.http if front == "HTTP" else tls.metrics
    assert files is not None
    return files


def test_new_files_are_in_use_once_they_have_stayed_the_same_between_two_looks(
    authority: Authority, server_pair: Pair, tmp_path: Path
) -> None:
    certificates = Certificates(_copy(server_pair, tmp_path))
    first = certificates.context
    assert not certificates.look()
    _copy(authority.issue("second"), tmp_path)
    assert not certificates.look()
    assert certificates.look()
    assert certificates.context is not first
    assert not certificates.look()


def test_a_directory_is_replaced_as_the_kubelet_does(authority: Authority, server_pair: Pair, tmp_path: Path) -> None:
    """``tls.crt`` leads to ``..data/tls.crt``, and ``..data`` to a directory of its own for each version."""
    _copy(server_pair, tmp_path / "..2026_1")
    _copy(authority.issue("second"), tmp_path / "..2026_2")
    (tmp_path / "..data").symlink_to("..2026_1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    certificates = Certificates(TlsFiles("HTTP", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")))
    first = certificates.context
    (tmp_path / "..next").symlink_to("..2026_2")
    (tmp_path / "..next").rename(tmp_path / "..data")
    certificates.look()
    assert certificates.look()
    assert certificates.context is not first


@pytest.mark.parametrize("damage", ["another key", "half of the certificate", "no key", "empty"])
def test_files_that_do_not_fit_leave_the_former_certificate_in_place(
    authority: Authority, server_pair: Pair, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(_copy(server_pair, tmp_path))
    first = certificates.context
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    if damage == "another key":
        shutil.copy(authority.issue("second").key, key)
    elif damage == "half of the certificate":
        certificate.write_bytes(certificate.read_bytes()[:200])
    elif damage == "no key":
        key.unlink()
    else:
        certificate.write_bytes(b"")
    with caplog.at_level(logging.ERROR):
        assert not any(certificates.look() for _ in range(4))
    assert certificates.context is first
    assert [record.message for record in caplog.records] == [caplog.records[0].message], "once for each change"
    assert "HTTP keeps its former TLS certificate" in caplog.text
    assert "PRIVATE" not in caplog.text
    _copy(authority.issue("third"), tmp_path)
    certificates.look()
    assert certificates.look()


@pytest.mark.parametrize("name", ["tls.key", "tls.crt"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a file without an end"])
def test_what_is_no_file_of_a_certificate_keeps_no_one_waiting(
    name: str, kind: str, authority: Authority, server_pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening a pipe waited for its writer, and no certificate was replaced from then on."""
    certificates = Certificates(_copy(server_pair, tmp_path))
    first = certificates.context
    (tmp_path / name).unlink()
    if kind == "a pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "a device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.truncate(os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY), 1 << 40)
    assert not certificates.look()
    assert not certificates.look()
    assert certificates.context is first
    assert "HTTP keeps its former TLS certificate: cannot read --http-server-" in caplog.text
    (tmp_path / name).unlink()
    _copy(authority.issue("second"), tmp_path)
    assert not certificates.look()
    assert certificates.look()


def test_a_certificate_and_its_key_are_those_that_were_read(
    authority: Authority, server_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were opened a second time for the context, and another file may lie there by then."""
    files = _copy(server_pair, tmp_path)

    def read(path: str, *, limit: int) -> bytes:
        content = Path(path).read_bytes()
        Path(path).unlink()
        return content

    monkeypatch.setattr(tls_certificates, "read_small_file", read)
    assert files.read().context.get_ca_certs() == []


@pytest.mark.parametrize("what", ["read_small_file", "_in_memory"])
def test_new_files_are_read_again_once_there_are_descriptors(
    what: str, authority: Authority, server_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former certificate stayed until the files changed again."""
    certificates = Certificates(_copy(server_pair, tmp_path))
    first = certificates.context
    _copy(authority.issue("second"), tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(tls_certificates, what, fail)
        assert not certificates.look()
        assert not certificates.look()
        assert certificates.context is first
    assert certificates.look()
    assert certificates.context is not first


def test_an_expired_certificate_is_served_and_reported(
    server_pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, key = (
        x509.load_pem_x509_certificate(Path(server_pair.certificate).read_bytes()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    expired = (
        x509.CertificateBuilder(old.subject, old.subject, key.public_key(), 1)
        .not_valid_before(datetime(2020, 1, 1))
        .not_valid_after(datetime(2020, 1, 31))
        .sign(key, hashes.SHA256())
    )
    text = "HTTP: the TLS certificate in '{}' expired on 2020-01-31, clients refuse it"
    certificates = Certificates(_copy(server_pair, tmp_path))
    assert not caplog.records
    (tmp_path / "tls.crt").write_bytes(expired.public_bytes(Encoding.PEM))
    (tmp_path / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificates.look()
    assert certificates.look()
    assert [record.message for record in caplog.records] == [text.format(tmp_path / "tls.crt")]
    Certificates(TlsFiles("HTTP", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")))
    assert len(caplog.records) == 2


def test_the_thread_finds_new_files_by_itself(authority: Authority, server_pair: Pair, tmp_path: Path) -> None:
    certificates = Certificates(_copy(server_pair, tmp_path))
    first = certificates.context
    certificates.watch()
    try:
        _copy(authority.issue("second"), tmp_path)
        while certificates.context is first:
            certificates._ended.wait(0.05)
    finally:
        certificates.close()
        certificates.close()


@pytest.mark.parametrize(("front", "flag"), [("HTTP", "--http"), ("the metrics port", "--http"), ("gRPC", "--grpc")])
def test_files_that_are_wrong_at_the_start_are_named_with_their_flag(
    front: str, flag: str, server_pair: Pair, tmp_path: Path
) -> None:
    certificate, key, none = server_pair.certificate, server_pair.key, str(tmp_path / "none")
    swapped = f"{flag}-server-cert '{key}' and {flag}-server-key '{certificate}' are not a certificate and its key"
    signer = f"{front} with TLS needs the certificate that signs those of clients: set {flag}-root-cert=FILE"
    wrong = {
        f"{front} with TLS needs the server's key: set {flag}-server-key=FILE": _of(front, certificate),
        f"{front} with TLS needs the server's certificate: set {flag}-server-cert=FILE": _of(front, "", key),
        f"cannot read {flag}-server-key '{none}': No such file": _of(front, certificate, none),
        f"cannot read {flag}-server-cert '{none}': No such file": _of(front, none, key),
        swapped: _of(front, key, certificate),
        signer: _of(front, certificate, key, mutual=True),
        f"{flag}-root-cert '{key}' holds no certificate": _of(front, certificate, key, key),
    }
    for text, files in wrong.items():
        with pytest.raises(InvalidArgumentError, match=re.escape(text)):
            Certificates(files)
