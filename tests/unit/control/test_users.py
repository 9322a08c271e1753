"""Are users known by password and token, and is a users file that cannot be used refused?"""

from __future__ import annotations

import stat
from pathlib import Path

import argon2
import pytest

from broker.settings import SettingsError
from control.access.login import TokenOfRun
from control.access.users import User, Users, add_user, hash_token, read_users
from control.roles import Role

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
    ada = known.with_password("ada", PASSWORD)
    assert ada is not None
    assert (ada.name, ada.role) == ("ada", Role.OPERATOR)
    for name, password in (("ada", "wrong"), ("ada", ""), ("bob", PASSWORD), ("", ""), ("ada", "x" * 10**6)):
        assert known.with_password(name, password) is None
    assert known.with_password("ada", "\ud800") is None
    assert PASSWORD not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_program_is_known_by_its_token_alone(tmp_path: Path) -> None:
    file = tmp_path / "users"
    token = add_user(file, "grafana", Role.VIEWER, None)
    assert token is not None
    known = Users(file)
    grafana = known.with_token(token)
    assert grafana is not None
    assert (grafana.name, grafana.role) == ("grafana", Role.VIEWER)
    # Whoever reads the file does not know the token.
    for given in ("", token[:-1], hash_token(token), "\ud800", "é"):
        assert known.with_token(given) is None
    assert token not in file.read_text()


def test_a_person_may_log_in_with_a_token(tmp_path: Path) -> None:
    file = tmp_path / "users"
    token = add_user(file, "admin", Role.ADMIN, None)
    assert token is not None
    add_user(file, "ada", Role.VIEWER, PASSWORD)
    known = Users(file)
    admin = known.with_password("admin", token)
    assert admin is not None
    assert (admin.name, admin.role) == ("admin", Role.ADMIN)
    assert admin == known.with_token(token)
    for name, password in (("ada", token), ("", token), ("admin", hash_token(token)), ("admin", token[:-1])):
        assert known.with_password(name, password) is None


def test_a_file_that_has_changed_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "users"
    add_user(file, "ada", Role.VIEWER, PASSWORD)
    known = Users(file)
    ada = known.with_password("ada", PASSWORD)
    assert ada is not None
    file.write_text(file.read_text().replace("viewer", "admin"))
    current = known.current(ada)
    assert current is not None
    assert current.role == Role.ADMIN
    file.write_text(f"bob:viewer:{hash_token('t')}\n")
    assert known.current(ada) is None
    assert known.with_password("ada", PASSWORD) is None


def test_a_new_password_ends_what_began_with_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "users"
    add_user(file, "ada", Role.VIEWER, PASSWORD)
    known = Users(file)
    before = known.with_password("ada", PASSWORD)
    assert before is not None
    file.unlink()
    add_user(file, "ada", Role.VIEWER, "another long password")
    assert known.current(before) is None
    after = known.with_password("ada", "another long password")
    assert after is not None
    assert known.current(after) == after


@pytest.mark.parametrize("text", [None, "", "half of a li", "ada:admin:$argon2id$half"])
def test_a_file_that_cannot_be_used_any_more_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    file = tmp_path / "users"
    token = add_user(file, "ada", Role.ADMIN, None)
    assert token is not None
    known = Users(file)
    ada = known.with_token(token)
    assert ada is not None
    kept = file.read_text()
    file.unlink()
    if text is not None:
        file.write_text(text)
    for _ in range(3):
        assert known.with_token(token) is known.current(ada) is None
    # It is logged once, and not at every request.
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == (text != "")
    file.write_text(kept)
    assert known.with_token(token) == ada


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "contains no user"),
        ("# only a comment\n\n", "contains no user"),
        ("ada:operator:my plain password", "line 1 is not name:role:secret"),
        (f"ada:boss:{hash_token('t')}", "line 1 is not"),
        (f":viewer:{hash_token('t')}", "line 1 is not"),
        ("ada", "line 1 is not"),
        ("ada:viewer:sha256$ab", "line 1 is not"),
        ("ada:viewer:$argon2id$v=19$m=1,t=1,p=1$\ufffd$x", "line 1 is not"),
        (f"ada:viewer:{hash_token('t')}bob:viewer:{hash_token('u')}", "line 1 is not"),
        (f"ada:viewer:{hash_token('t')}\nbob\n\x00", "line 2 is not"),
        (f"ada:viewer:{hash_token('t')}\nada:admin:{hash_token('u')}\n", "line 2 has the same name"),
        ("x\n" * 1_000, "and 995 more"),
    ],
)
def test_a_file_with_other_lines_is_refused_without_showing_them(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(SettingsError, match=fault) as error:
        Users(file)
    for secret in ("my plain password", "boss", hash_token("t")):
        assert secret not in str(error.value)
    assert len(str(error.value)) < 1_000


def test_a_file_that_is_not_there_too_large_or_open_to_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        Users(tmp_path / "none")
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    with pytest.raises(SettingsError, match="larger than"):
        Users(tmp_path / "large")
    with pytest.raises(SettingsError, match="not a regular file"):
        Users(tmp_path)
    add_user(tmp_path / "open", "ada", Role.ADMIN, None)
    (tmp_path / "open").chmod(0o620)
    with pytest.raises(SettingsError, match="others may write"):
        Users(tmp_path / "open")


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
    assert [one.user.role for one in read_users(file).values()] == [Role.VIEWER]


def test_users_are_added_to_any_file_that_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# nobody yet")
    add_user(file, "ada", Role.VIEWER, None)
    file.write_text(file.read_text().rstrip("\n"))
    add_user(file, "bob", Role.VIEWER, None)
    assert set(read_users(file)) == {"ada", "bob"}
    assert file.read_text().startswith("# nobody yet\n")


def test_without_a_file_only_the_token_of_the_run_is_valid() -> None:
    one, other = TokenOfRun(), TokenOfRun()
    assert one.token != other.token
    admin = User("admin", Role.ADMIN)
    assert one.with_token(one.token) == one.with_password("admin", one.token) == one.current(admin) == admin
    assert one.with_token(other.token) is one.with_password("root", one.token) is one.with_token("") is None
