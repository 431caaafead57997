"""https: only servers whose certificate is trusted and names the host are spoken to."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nemo_jobs.client import ConnectionFailed
from tests.cli.scripted import Reply, job, scripted
from tests.client.conftest import Connect


def certificate(folder: Path, address: str) -> tuple[ssl.SSLContext, str]:
    """A server's TLS with a certificate of its own for an address, and the file to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, secret = folder / "cert.pem", folder / "key.pem"
    trusted.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, secret)
    return context, str(trusted)


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[ssl.SSLContext, str]]:
    yield certificate(tmp_path, "127.0.0.1")


CONTENT = bytes(range(256)) * 2000


def test_a_trusted_server_is_spoken_to(connect: Connect, tls: tuple[ssl.SSLContext, str]) -> None:
    context, trusted = tls
    with scripted(Reply(body=job()), Reply(body=CONTENT), Reply(body={"path": "p"}), tls=context) as server:
        client = connect(server.url, ca_file=trusted, token="t")
        assert client.get_job("x")["name"] == "moth-sorter"
        assert client.done(client.download_file("a", fileset="f").read()) == CONTENT
        client.put_file("p", iter([CONTENT, CONTENT]), fileset="f")
        assert server.seen[-1].body == CONTENT * 2
        assert server.connections == 1


def test_a_certificate_that_nobody_vouches_for_gets_no_request(
    connect: Connect, tls: tuple[ssl.SSLContext, str]
) -> None:
    with scripted(Reply(body=job()), tls=tls[0]) as server:
        with pytest.raises(ConnectionFailed, match="certificate verify failed"):
            connect(server.url, token="t", repeats=0).get_job("x")
        assert server.seen == []


def test_a_certificate_of_another_host_gets_no_request(connect: Connect, tmp_path: Path) -> None:
    context, trusted = certificate(tmp_path, "127.0.0.2")
    with scripted(Reply(body=job()), tls=context) as server:
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
            connect(server.url, ca_file=trusted, token="t", repeats=0).get_job("x")
        assert server.seen == []


def test_a_file_of_authorities_that_is_missing_is_told(connect: Connect) -> None:
    with scripted(Reply(body=job())) as server, pytest.raises(ConnectionFailed, match="no such file"):
        url = server.url.replace("http://", "https://")
        connect(url, ca_file="/nonexistent.pem", repeats=0).get_job("x")


def test_plain_http_where_tls_is_expected_is_told(connect: Connect) -> None:
    with scripted(Reply(body=job())) as server, pytest.raises(ConnectionFailed):
        connect(server.url.replace("http://", "https://"), repeats=0).get_job("x")
