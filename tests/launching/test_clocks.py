"""Clocks of one machine that are set back do not end a federation on it."""

from datetime import UTC, datetime, timedelta

from cryptography import x509

from fedbary.launching.superlink import write_certificates


def test_certificates_are_valid_a_day_ago_and_for_days_to_come(tmp_path):
    write_certificates(tmp_path)
    now, day = datetime.now(UTC), timedelta(days=1)
    for name in ("ca.crt", "server.crt"):
        held = x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        assert held.not_valid_before_utc < now - day and held.not_valid_after_utc > now + day
