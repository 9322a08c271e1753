"""The users of the control service, read from a file with one line per user.

    # name:role:secret
    ada:operator:$argon2id$v=19$m=65536,t=3,p=4$...
    grafana:viewer:sha256$9f86d081884c7d65...

The secret is the Argon2id hash of a password, or the SHA-256 hash of a token. A token has 256 random bits, so it needs
no slow hash. It is also accepted as its user's password. `lsb-control add` writes these lines. The file is reread when
it changes. If it is unusable then, nobody is let in, with a password, a token or an open session, so that a removed
user stays removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import argon2

from broker.settings import SettingsError
from control.roles import Role

PASSWORD_LENGTH_MIN: Final = 12
PASSWORD_LENGTH_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 1_000_000
_FAULTS_MAX: Final = 5
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_PASSWORD_HASH: Final = re.compile(r"\$argon2id\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
_TOKEN_HASH: Final = re.compile(r"sha256\$[0-9a-f]{64}")
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class User:
    """A person who has logged in, or a program with a token.

    ``version``: changes with the password or the token, so that sessions started with the old one end.
    """

    name: str
    role: Role
    version: str = field(default="", repr=False)


@dataclass(frozen=True)
class Account:
    """A line of the file."""

    user: User
    secret: str = field(repr=False)


class Users:
    """The users in a file. Thread-safe."""

    def __init__(self, file: Path) -> None:
        """Read the file. Raises `SettingsError` if it is unusable or contains no users."""
        self._file = file
        self._hasher = argon2.PasswordHasher()
        self._nobody = self._hasher.hash(secrets.token_urlsafe())
        self._lock = threading.Lock()
        try:
            self._stamp: tuple[int, ...] | None = _stamp_of(file)
            self._accounts = read_users(file)
        except OSError as error:
            raise SettingsError(f"the users file {file} cannot be read: {error.strerror}") from error
        if not self._accounts:
            raise SettingsError(f"the users file {file} contains no user: add one with `lsb-control add`")

    def with_password(self, name: str, password: str) -> User | None:
        """Return the user with this name and password or token, or None. Takes about a tenth of a second."""
        found = self._known().get(name)
        given = password[:PASSWORD_LENGTH_MAX]
        has_password = found is not None and found.secret.startswith("$argon2id$")
        # An unknown name and a token take as long as a wrong password, so that the timing does not give away names.
        secret = found.secret if found is not None and has_password else self._nobody
        try:
            self._hasher.verify(secret, given.encode(errors="surrogatepass"))
            is_right = has_password
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            is_right = found is not None and hmac.compare_digest(found.secret.encode(), hash_token(given).encode())
        return found.user if found is not None and is_right else None

    def with_token(self, token: str) -> User | None:
        """Return the user with this token, or None."""
        given = hash_token(token).encode()
        found = [one.user for one in self._known().values() if hmac.compare_digest(one.secret.encode(), given)]
        return found[0] if found else None

    def current(self, user: User) -> User | None:
        """Return the user with their current role, or None if the file no longer has this name with this secret."""
        found = self._known().get(user.name)
        return found.user if found is not None and found.user.version == user.version else None

    def _known(self) -> dict[str, Account]:
        """Return the accounts currently in the file, by name."""
        with self._lock:
            try:
                stamp: tuple[int, ...] | None = _stamp_of(self._file)
            except OSError:
                stamp = None
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._accounts = read_users(self._file)
                    _log.info("the users file %s has changed: %d users", self._file, len(self._accounts))
                except (OSError, SettingsError) as error:
                    self._accounts = {}
                    why = error.strerror if isinstance(error, OSError) else error
                    _log.error("the users file %s cannot be used, so nobody can log in: %s", self._file, why)
            return self._accounts


def read_users(file: Path) -> dict[str, Account]:
    """Return the accounts in a file by name. Raises OSError, and `SettingsError` that names the first invalid lines."""
    about = file.stat()
    if not stat.S_ISREG(about.st_mode):
        raise SettingsError(f"the users file {file} is not a regular file")
    if about.st_mode & _OTHERS_MAY_WRITE:
        raise SettingsError(f"others may write to the users file {file}: chmod 600 {file}")
    if about.st_size > _FILE_BYTES_MAX:
        raise SettingsError(f"the users file {file} is larger than {_FILE_BYTES_MAX:,} bytes")
    found: dict[str, Account] = {}
    faults = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        role, _, secret = rest.partition(":")
        is_secret = _PASSWORD_HASH.fullmatch(secret) or _TOKEN_HASH.fullmatch(secret)
        if not _NAME.fullmatch(name) or role.upper() not in Role.__members__ or not is_secret:
            # The line is not shown, because it may contain a plain-text password.
            faults.append(f"line {number} is not name:role:secret as `lsb-control add` writes it")
        elif name in found:
            faults.append(f"line {number} has the same name as an earlier line")
        else:
            version = hashlib.sha256(secret.encode()).hexdigest()
            found[name] = Account(User(name, Role[role.upper()], version), secret)
    if faults:
        more = f"; and {len(faults) - _FAULTS_MAX} more" if len(faults) > _FAULTS_MAX else ""
        raise SettingsError(f"the users file {file} cannot be used: {'; '.join(faults[:_FAULTS_MAX])}{more}")
    return found


def hash_token(token: str) -> str:
    """Return the hash of a token as written in the file."""
    return f"sha256${hashlib.sha256(token.encode(errors='surrogatepass')).hexdigest()}"


def add_user(file: Path, name: str, role: Role, password: str | None) -> str | None:
    """Add a line to the file. A new file is accessible only to its owner. Without a password, return a new token.

    Raises OSError, and `SettingsError` if the name, the password or the file is unusable.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(f"the name {name!r} must be 1 to 64 letters, digits, '.', '_', '-' or '@'")
    token = None
    if password is None:
        token = secrets.token_urlsafe(32)
        secret = hash_token(token)
    elif not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise SettingsError(f"a password must have {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX:,} characters")
    else:
        secret = argon2.PasswordHasher().hash(password)
    with os.fdopen(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if name in read_users(file):
            raise SettingsError(f"{file} already has a user {name!r}: remove that line first")
        text = opened.read()
        end = "" if not text or text.endswith("\n") else "\n"
        opened.write(f"{end}{name}:{role.name.lower()}:{secret}\n")
    return token


def _stamp_of(file: Path) -> tuple[int, ...]:
    about = file.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
