"""Flower's commands on a SuperLink."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedbary.errors import RunError
from fedbary.launching.app import app_folder
from fedbary.launching.programs import tool

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


SUPERLINK_SECONDS = 180
"""The time that a machine with much else to do may take to start one."""


def wait_for_superlink(
    process: subprocess.Popen[bytes], address: str, log: Path, ca: Path | None = None
) -> None:
    """Wait until a SuperLink answers, by HTTPS if its certificate's authority is given.

    Raises
    ------
    RunError
        If it ends, or does not answer in time; the message is the last error of its log, its last
        line, or how long it had.
    """
    handlers = [HTTPSHandler(context=ssl.create_default_context(cafile=ca))] if ca else []
    opener = build_opener(ProxyHandler({}), *handlers)
    url = f"{'https' if ca else 'http'}://{address}/health"
    deadline = time.monotonic() + SUPERLINK_SECONDS
    while not _is_healthy(opener, url):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = [line for line in lines if "ERROR" in line] or lines
            late = f"no answer within {SUPERLINK_SECONDS} s; is the machine busy?"
            raise RunError(f"Flower's SuperLink did not start: {said[-1] if said else late}")
        time.sleep(0.1)


def _is_healthy(opener: OpenerDirector, url: str) -> bool:
    try:
        with opener.open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def last_status(environment: dict[str, str], name: str) -> str:
    """Return the newest run's status on the SuperLink of that name."""
    command = [tool("flwr"), "list", name, "--format", "json"]
    done = subprocess.run(
        command, cwd=app_folder(), env=environment, capture_output=True, check=False
    )
    try:
        return str(json.loads(done.stdout)["runs"][0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def to_toml(values: Mapping[str, str | int | float | bool]) -> str:
    """Return flat settings as TOML; JSON writes all but the delete character the same way."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()]
    return "".join(lines).replace("\x7f", "\\u007f")
