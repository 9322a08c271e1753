"""Are users known by password and token, and is a users file that cannot be used refused?"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import argon2
import pytest

from broker.settings import SettingsError
from control.access.login import TokenOfRun
from control.access.users import Role, User, Users, add_user, hash_token, read_users

PASSWORD = "correct horse battery"  # noqa: S105 - of a test


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hashes cheap, because their cost is not what is tested."""
    quick = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(argon2, "PasswordHasher", lambda: quick)


def test_a_user_is_known_by_the_password_alone(tmp_path: Path) -> None:
    file = tmp_path / "users"
    assert add_user(file, "ada", Role.OPERATOR, PASSWORD) is None
    known = Users(file)
    assert known.with_password("ada", PASSWORD) == User("ada", Role.OPERATOR)
    for name, password in (("ada", "wrong"), ("ada", ""), ("bob", PASSWORD), ("", ""), ("ada", "x" * 10**6)):
        assert known.with_password(name, password) is None
    assert PASSWORD not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_program_is_known_by_its_token_alone(tmp_path: Path) -> None:
    file = tmp_path / "users"
    token = add_user(file, "grafana", Role.VIEWER, None)
    assert token is not None
    known = Users(file)
    assert known.with_token(token) == User("grafana", Role.VIEWER)
    # Whoever reads the file does not know the token.
    for given in ("", token[:-1], hash_token(token), "\ud800", "é"):
        assert known.with_token(given) is None
    assert known.with_password("grafana", token) is None
    assert token not in file.read_text()


def test_a_file_that_has_changed_is_read_again_and_one_that_is_broken_is_not(tmp_path: Path) -> None:
    file = tmp_path / "users"
    add_user(file, "ada", Role.VIEWER, PASSWORD)
    known = Users(file)
    ada = known.with_password("ada", PASSWORD)
    assert ada is not None
    file.write_text(file.read_text().replace("viewer", "admin"))
    assert known.current(ada) == User("ada", Role.ADMIN)
    file.write_text("half of a li")
    os.utime(file, ns=(1, 1))
    assert known.current(ada) == User("ada", Role.ADMIN)
    file.write_text(f"bob:viewer:{hash_token('t')}\n")
    assert known.current(ada) is None
    assert known.with_password("ada", PASSWORD) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it contains no user"),
        ("# only a comment\n\n", "it contains no user"),
        ("ada:operator:secret", "line 1 is not name:role:secret"),
        ("ada:boss:$argon2id$x", "line 1 is not"),
        (":viewer:$argon2id$x", "line 1 is not"),
        ("ada", "line 1 is not"),
        ("ada:viewer:sha256$ab", "line 1 is not"),
        (f"ada:viewer:{hash_token('t')}\nbob\n\x00", "line 2 is not"),
    ],
)
def test_a_file_with_other_lines_is_refused_without_showing_them(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(SettingsError, match=fault) as error:
        Users(file)
    assert "secret\n" not in str(error.value)
    assert "boss" not in str(error.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        Users(tmp_path / "none")
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    with pytest.raises(SettingsError, match="larger than"):
        Users(tmp_path / "large")


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", " a", "a" * 65, "-a", "é"])
def test_a_name_that_would_break_the_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="the name"):
        add_user(tmp_path / "users", name, Role.VIEWER, PASSWORD)
    assert not (tmp_path / "users").exists()


def test_a_short_password_and_a_name_that_is_taken_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "users"
    with pytest.raises(SettingsError, match="12 to 1,000 characters"):
        add_user(file, "ada", Role.VIEWER, "short")
    add_user(file, "ada", Role.VIEWER, PASSWORD)
    with pytest.raises(SettingsError, match="already has a user"):
        add_user(file, "ada", Role.ADMIN, PASSWORD)
    assert [user for user, _ in read_users(file)] == [User("ada", Role.VIEWER)]


def test_without_a_file_only_the_printed_token_is_valid() -> None:
    one, other = TokenOfRun(), TokenOfRun()
    assert one.token != other.token
    admin = User("admin", Role.ADMIN)
    assert one.with_token(one.token) == one.with_password("admin", one.token) == one.current(admin) == admin
    assert one.with_token(other.token) is one.with_password("root", one.token) is one.with_token("") is None
