"""Certificates for tests."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nemo_jobs.backends.docker.transport import Tls


@dataclass(frozen=True)
class Papers:
    """Files of one authority and of what it signed; `foreign` is of another one."""

    folder: Path

    def make(self, name: str, issuer: str | None) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        signer, issued_by = key, subject
        if issuer is not None:
            signer, issued_by = self._key(issuer), self._certificate(issuer).subject
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issued_by)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(signer, hashes.SHA256())
        )
        self.path(name, "cert").write_bytes(built.public_bytes(serialization.Encoding.PEM))
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        self.path(name, "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))

    def path(self, name: str, kind: str) -> Path:
        return self.folder / f"{name}-{kind}.pem"

    def tls(self, name: str | None, ca: str | None = "ca", *, verify: bool = True) -> Tls:
        return Tls(
            str(self.path(ca, "cert")) if ca else None,
            str(self.path(name, "cert")) if name else None,
            str(self.path(name, "key")) if name else None,
            verify,
        )

    def _key(self, name: str) -> ec.EllipticCurvePrivateKey:
        found = serialization.load_pem_private_key(self.path(name, "key").read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return found

    def _certificate(self, name: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.path(name, "cert").read_bytes())
