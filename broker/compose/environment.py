"""Passwords and tokens for docker-compose.yml: ``make env``.

Each is made once, at random, and lies in a file of its own, which goes into the containers that need it and into no
command line, no environment and no image. ``.env`` only tells Compose where they are. What is there already is kept.
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
"""The one user of the MQTT broker."""

_MADE: Final = ("mqtt_password", "influxdb_password", "influxdb_token", "grafana_password")
_BYTES: Final = 24
_ENVIRONMENT: Final = """\
# Read by `docker compose`; made by `make env`. The passwords themselves are in files of this folder.
LSB_SECRETS={folder}
"""


def main(root: Path | None = None) -> int:
    """Make what is missing below ``root`` (the current folder); the exit status."""
    root = root or Path.cwd()
    folder = root / FOLDER
    try:
        # Only their owner enters the folder. In a container another reads the files, so that all may.
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        made = [name for name in _MADE if _make(folder / name)]
        password = (folder / "mqtt_password").read_text().strip()
        if "mqtt_password" in made or not (folder / "mqtt_passwords").exists():
            hashed = mosquitto_hash(password, secrets.token_bytes(12))
            _write(folder / "mqtt_passwords", f"{USER}:{hashed}\n")
        _write(root / ".env", _ENVIRONMENT.format(folder=f"./{FOLDER}"), mode=0o644)
    except OSError as error:
        print(f"make env: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{', '.join(made) or 'nothing new'} in {FOLDER}; .env names the folder. Next: docker compose up")
    return 0


def mosquitto_hash(password: str, salt: bytes) -> str:
    """What a password file of mosquitto 2 holds of a password, as mosquitto_passwd writes it: PBKDF2 over SHA-512."""
    rounds = 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _make(path: Path) -> bool:
    if path.exists():
        return False
    _write(path, secrets.token_urlsafe(_BYTES) + "\n")
    return True


def _write(path: Path, text: str, *, mode: int = 0o444) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
