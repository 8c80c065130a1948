"""A lab's certificates pass strict checks, also where clocks are set back."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from fedbary.launching.superlink import write_certificates


def shaken(folder, name):
    """Shake hands over memory, the client as Python 3.13 does; return the client's side."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=folder / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides[0]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_the_server_is_known_by_both_its_names(name, tmp_path):
    write_certificates(tmp_path)
    assert shaken(tmp_path, name).getpeercert()["subject"]


def test_another_name_and_another_authority_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_certificates(tmp_path / folder)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(tmp_path / "one", "elsewhere")
    (tmp_path / "two" / "ca.crt").replace(tmp_path / "one" / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(tmp_path / "one", "localhost")


def test_certificates_are_valid_a_day_ago_and_for_days_to_come(tmp_path):
    write_certificates(tmp_path)
    now, day = datetime.now(UTC), timedelta(days=1)
    for name in ("ca.crt", "server.crt"):
        held = x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        assert held.not_valid_before_utc < now - day and held.not_valid_after_utc > now + day
