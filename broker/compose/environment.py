"""Generates the passwords and tokens for docker-compose.yml (``make env``).

Each password is random and written to its own file, which is mounted into the containers that need it. Passwords never
appear on a command line, in the environment or in an image; ``.env`` contains only the path of the folder that holds
these files. Existing passwords are kept, as are users added to the control service.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(".lsb/secrets")
USER: Final = "lsb"
"""The MQTT broker's only user."""

_SECRETS: Final = (
    *("mqtt_password", "influxdb_password", "influxdb_token", "grafana_password"),
    *("control_password", "control_token", "registry_password"),
)
_BYTES: Final = 32
"""The control service requires this many random bytes in a secret, because it hashes secrets only once."""

_CONTROL_USERS: Final = {"control_password": "admin:admin", "control_token": "prometheus:viewer"}
"""The control service user that each of these secrets belongs to, with the user's role."""

ROLES: Final = ("viewer", "operator", "admin")
"""The roles that a user of the control service can have."""

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"

_ENVIRONMENT: Final = """\
# Read by `docker compose`; written by `make env`. This folder contains the passwords, one file each.
LSB_SECRETS={folder}
"""


def main(root: Path | None = None, arguments: Sequence[str] = ()) -> int:
    """Generate the missing files below ``root`` (default: the current folder). Return the exit status."""
    given = _parser().parse_args(arguments)
    root = root or Path.cwd()
    folder = root / FOLDER
    try:
        if given.add is not None:
            print(add_control_user(folder, given.add, given.role))
            return 0
        # Only the owner may enter the folder. The files are world-readable, because containers read them as a
        # different user.
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        generated = [name for name in _SECRETS if _generate(folder / name)]
        password = (folder / "mqtt_password").read_text().strip()
        if "mqtt_password" in generated or not (folder / "mqtt_passwords").exists():
            hashed = mosquitto_hash(password, secrets.token_bytes(12))
            _write(folder / "mqtt_passwords", f"{USER}:{hashed}\n")
        _write_control_users(folder, generated)
        _write(root / ".env", _ENVIRONMENT.format(folder=f"./{FOLDER}"), mode=0o644)
    except OSError as error:
        print(f"make env: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"make env: {error}", file=sys.stderr)
        return 2
    print(f"Generated {', '.join(generated) or 'no new files'} in {FOLDER}. Next: docker compose up")
    return 0


def add_control_user(folder: Path, name: str, role: str) -> str:
    """Add a user to the control service and return the new token. A running service accepts it at once.

    Raises ValueError if the name is invalid or taken, and OSError if ``make env`` has not written the users file yet.
    """
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"the name {name!r} must be 1 to 64 letters, digits, '.', '_', '-' or '@'")
    # Append instead of replacing the file: a container keeps seeing the file it was started with.
    with (folder / "control_users").open("r+") as file:
        text = file.read()
        if any(line.partition(":")[0] == name for line in text.splitlines()):
            raise ValueError(
                f"there is already a user {name!r}: remove the user's line from {folder / 'control_users'} first"
            )
        token = secrets.token_urlsafe(_BYTES)
        end = "" if text.endswith("\n") else "\n"
        file.write(f"{end}{name}:{role}:{_token_hash(token)}\n")
    return token


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make env", description="Generates the missing passwords and tokens for docker-compose.yml."
    )
    parser.add_argument("--add", metavar="NAME", help="add a user to the control service instead, and print the token")
    parser.add_argument("--role", choices=ROLES, default=ROLES[0], help="the user's role (default: %(default)s)")
    return parser


def mosquitto_hash(password: str, salt: bytes) -> str:
    """Return the hash of ``password`` in the format of mosquitto 2's password files: PBKDF2 with SHA-512."""
    rounds = 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _write_control_users(folder: Path, generated: Sequence[str]) -> None:
    """Write the control service's users file if it is missing or if one of its users has a new secret."""
    file = folder / "control_users"
    lines = file.read_text().splitlines() if file.exists() else []
    renewed = [name for name in _CONTROL_USERS if name in generated or not lines]
    if not renewed:
        return
    users = {_CONTROL_USERS[name].partition(":")[0] for name in renewed}
    kept = [line for line in lines if line.partition(":")[0] not in users]
    made = [f"{_CONTROL_USERS[name]}:{_token_hash((folder / name).read_text().strip())}" for name in renewed]
    # Writable by the owner, so that users can be added.
    _write(file, "".join(f"{line}\n" for line in [*made, *kept]), mode=0o644)


def _token_hash(token: str) -> str:
    """Return a token's hash in the control service's format."""
    return f"sha256${hashlib.sha256(token.encode()).hexdigest()}"


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
    sys.exit(main(arguments=sys.argv[1:]))
