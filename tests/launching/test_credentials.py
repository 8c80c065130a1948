"""A lab's certificates pass the strict checks that Python makes by default from 3.13 on."""

import ssl

import pytest

from fedbary.launching.superlink import write_certificates


def shaken(folder, name):
    """Shake hands over memory, the client by the strict rules; return the client's side."""
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
