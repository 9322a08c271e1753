"""Certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path, Path]:
    """Create a CA, and a certificate signed by it, with its key. ``names``: whom it is for, by default this machine."""
    authority, certificate, key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    (folder / "names").write_text(f"subjectAltName={names}\n")
    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    signed_by = f"-CA {authority} -CAkey {folder}/ca.key -CAcreateserial"
    for line in (
        f"req -x509 {new_key} -days 2 -subj /CN=plant -keyout {folder}/ca.key -out {authority}",
        f"req {new_key} -subj /CN=localhost -keyout {key} -out {folder}/server.csr",
        f"x509 -req -in {folder}/server.csr -extfile {folder}/names -days 2 {signed_by} -out {certificate}",
    ):
        command = line.split()
        subprocess.run(["openssl", *command], check=True, capture_output=True)  # noqa: S607 - its path varies
    return authority, certificate, key
