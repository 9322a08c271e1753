"""The users of the control service, from a file with a line for each password and each token.

    # name:role:secret
    ada:operator:$argon2id$v=19$m=65536,t=3,p=4$...
    grafana:viewer:sha256$9f86d081884c7d65...

The secret is the Argon2 hash of a password, or the SHA-256 hash of a token. A token has 256 random bits, so it needs no
slow hash. `lsb-control add` writes such lines. The file is read again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

import argon2

from broker.settings import SettingsError

PASSWORD_LENGTH_MIN: Final = 12
PASSWORD_LENGTH_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 1_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_TOKEN_HASH: Final = re.compile(r"sha256\$[0-9a-f]{64}")
_LINE: Final = "name:role:secret, where role is viewer, operator or admin"

_log = logging.getLogger(__name__)


class Role(IntEnum):
    """What a user may do. Each role may also do what the roles below it may do."""

    VIEWER = 1
    """See everything except the contents of records."""
    OPERATOR = 2
    """Change where units run and how many processes there are, and see the contents of records."""
    ADMIN = 3
    """Change what is read and written: put records back, write watermarks, retry failed units."""


@dataclass(frozen=True)
class User:
    """Somebody who has logged in, or a program with a token."""

    name: str
    role: Role


class Users:
    """The users in a file. Thread-safe."""

    def __init__(self, file: Path) -> None:
        """Read the file. Raises `SettingsError` with each line that cannot be used."""
        self._file = file
        self._hasher = argon2.PasswordHasher()
        # A password takes 64 MB to check, so only a few are checked at the same time.
        self._checks = threading.BoundedSemaphore(2)
        self._nobody = self._hasher.hash(secrets.token_urlsafe())
        self._read_at: tuple[int, int] = (0, 0)
        self._lines: list[tuple[User, str]] = []
        self._lock = threading.Lock()
        self._refresh(is_first=True)

    def with_password(self, name: str, password: str) -> User | None:
        """Return the user with this name and password, or None. Takes about a tenth of a second."""
        self._refresh()
        found = [(user, secret) for user, secret in self._lines if user.name == name and secret.startswith("$argon2")]
        # An unknown name takes as long as a wrong password, so that names cannot be found out.
        user, secret = found[0] if found else (None, self._nobody)
        with self._checks:
            try:
                self._hasher.verify(secret, password[:PASSWORD_LENGTH_MAX])
            except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
                return None
        return user

    def with_token(self, token: str) -> User | None:
        """Return the user with this token, or None."""
        self._refresh()
        given = hash_token(token)
        found = [user for user, secret in self._lines if hmac.compare_digest(secret, given)]
        return found[0] if found else None

    def current(self, user: User) -> User | None:
        """Return the user as the file has it now, or None if it has none of this name any more."""
        self._refresh()
        return next((known for known, _ in self._lines if known.name == user.name), None)

    def _refresh(self, *, is_first: bool = False) -> None:
        with self._lock:
            try:
                found = self._file.stat()
                now = found.st_mtime_ns, found.st_size
                if now != self._read_at:
                    self._lines = read_users(self._file)
                    self._read_at = now
            except (OSError, SettingsError) as error:
                if is_first:
                    raise SettingsError(f"the users file {self._file} cannot be used: {error}") from error
                # A file that is being edited must not lock everybody out.
                _log.error("the users file %s has changed but cannot be used: %s", self._file, error)


def read_users(file: Path) -> list[tuple[User, str]]:
    """Return the users in a file with their secrets. Raises OSError, and `SettingsError` with each invalid line."""
    if file.stat().st_size > _FILE_BYTES_MAX:
        raise SettingsError(f"it is larger than {_FILE_BYTES_MAX:,} bytes")
    found, faults = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        role, _, secret = rest.partition(":")
        is_secret = secret.startswith("$argon2id$") or _TOKEN_HASH.fullmatch(secret)
        if not _NAME.fullmatch(name) or role.upper() not in Role.__members__ or not is_secret:
            # The line may contain a password that was written as plain text.
            faults.append(f"line {number} is not {_LINE} and secret is a hash: write it with `lsb-control add`")
        else:
            found.append((User(name, Role[role.upper()]), secret))
    if not found and not faults:
        faults.append("it contains no user: add one with `lsb-control add`")
    if faults:
        raise SettingsError("; ".join(faults))
    return found


def hash_token(token: str) -> str:
    """Return the hash of a token as it is written in the file."""
    return f"sha256${hashlib.sha256(token.encode(errors='surrogatepass')).hexdigest()}"


def add_user(file: Path, name: str, role: Role, password: str | None) -> str | None:
    """Add a line to the file, which only its owner can read. Without a password, return a new token.

    Raises `SettingsError` if the name or the password cannot be used, and OSError.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(f"the name {name!r} must be 1 to 64 letters, digits, '.', '_', '-' or '@'")
    if file.exists() and any(user.name == name for user, _ in read_users(file)):
        raise SettingsError(f"{file} already has a user {name!r}: remove that line first")
    token = None
    if password is None:
        token = secrets.token_urlsafe(32)
        secret = hash_token(token)
    elif not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise SettingsError(f"a password must have {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX:,} characters")
    else:
        secret = argon2.PasswordHasher().hash(password)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w", encoding="utf-8") as opened:
        opened.write(f"{name}:{role.name.lower()}:{secret}\n")
    return token
