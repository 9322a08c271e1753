"""Generates the passwords and tokens for docker-compose.yml (``make env``).

Each password is random and written to its own file, which is mounted into the containers that need it. Passwords never
appear on a command line, in the environment or in an image; ``.env`` contains only the path of the folder with these
files. Passwords that already exist are kept.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(".lsb/secrets")
USER: Final = "lsb"
"""The MQTT broker's only user."""

_SECRETS: Final = ("mqtt_password", "influxdb_password", "influxdb_token", "grafana_password")
_BYTES: Final = 24
_ENVIRONMENT: Final = """\
# Read by `docker compose`; written by `make env`. This folder contains the passwords, one file each.
LSB_SECRETS={folder}
"""


def main(root: Path | None = None) -> int:
    """Generate the missing files below ``root`` (default: the current folder). Return the exit status."""
    root = root or Path.cwd()
    folder = root / FOLDER
    try:
        # Only the owner may enter the folder. The files are world-readable, because containers read them as another
        # user.
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        generated = [name for name in _SECRETS if _generate(folder / name)]
        password = (folder / "mqtt_password").read_text().strip()
        if "mqtt_password" in generated or not (folder / "mqtt_passwords").exists():
            hashed = mosquitto_hash(password, secrets.token_bytes(12))
            _write(folder / "mqtt_passwords", f"{USER}:{hashed}\n")
        _write(root / ".env", _ENVIRONMENT.format(folder=f"./{FOLDER}"), mode=0o644)
    except OSError as error:
        print(f"make env: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"Generated {', '.join(generated) or 'no new files'} in {FOLDER}. Next: docker compose up")
    return 0


def mosquitto_hash(password: str, salt: bytes) -> str:
    """Return the hash of ``password`` in the format of mosquitto 2's password files: PBKDF2 with SHA-512."""
    rounds = 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _generate(path: Path) -> bool:
    if path.exists():
        return False
    _write(path, secrets.token_urlsafe(_BYTES) + "\n")
    return True


def _write(path: Path, text: str, *, mode: int = 0o444) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
