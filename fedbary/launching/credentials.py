"""Keys and certificates of a federation on one machine; real sites make their own."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(days=30)

_CURVE = ec.SECP384R1()
_PEM = serialization.Encoding.PEM
_OPENSSH = serialization.Encoding.OpenSSH
_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def write_certificates(folder: Path) -> None:
    """Write `ca.crt`, and `server.crt` with `server.key` for 127.0.0.1, signed by it.

    The authority's own key is not kept: nobody can sign a further certificate.
    """
    authority, server = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedbary lab")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    may_sign = x509.BasicConstraints(ca=True, path_length=0)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    root = _certificate(issuer, issuer, authority.public_key(), "key_cert_sign")
    root = root.add_extension(may_sign, True)
    signed = _certificate(subject, issuer, server.public_key(), "digital_signature")
    signed = signed.add_extension(names, False).add_extension(issued_by, False)
    for name, builder in (("ca.crt", root), ("server.crt", signed)):
        content = builder.sign(authority, hashes.SHA384()).public_bytes(_PEM)
        (folder / name).write_bytes(content)
    _write_secret(folder / "server.key", server, _PEM, serialization.PrivateFormat.PKCS8)


def write_site_key(file: Path) -> Path:
    """Write a SuperNode's private key to `file`; return the file of its public key beside it."""
    key = ec.generate_private_key(_CURVE)
    _write_secret(file, key, _PEM, serialization.PrivateFormat.OpenSSH)
    public = public_key(file)
    openssh = serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(_OPENSSH, openssh))
    return public


def public_key(file: Path) -> Path:
    """Return the file of the public key beside a private one."""
    return file.with_name(f"{file.name}.pub")


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, use: str
) -> x509.CertificateBuilder:
    """Return a certificate of a key for one use, with the fields that Python 3.13 requires."""
    now = datetime.now(UTC)
    used = x509.KeyUsage(**{name: name == use for name in _USES})
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)  # clocks differ, and are set back
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(used, True)
    )


def _write_secret(
    file: Path,
    key: ec.EllipticCurvePrivateKey,
    encoding: serialization.Encoding,
    form: serialization.PrivateFormat,
) -> None:
    content = key.private_bytes(encoding, form, serialization.NoEncryption())
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(content)
