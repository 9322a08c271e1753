"""The ``lsb-control`` command: runs the control service, or adds a user."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path
from typing import NoReturn

from broker.commandline import imports_of, leave, version_of

with imports_of("lsb-control", "control"):
    import control.access.users as access
    from broker.logs import set_up_logs
    from broker.settings import SettingsError, load_settings
    from control.roles import Role
    from control.server import serve
    from control.settings import Settings, check_access, check_applications

_EXAMPLES = """\
examples:
  lsb-control run                                      show the application in ./lsb.toml, on 127.0.0.1:8090
  lsb-control run --config a.toml --config b.toml      show two applications; [control] is read from the first file
  lsb-control add ada --role operator                  add a user; asks for the password
  lsb-control add prometheus --role viewer --token     add a program; prints its token

exit status: 0 stopped (SIGTERM, Ctrl-C) or added, 1 failed, 2 invalid arguments or settings
"""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    leave(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    given = _parser().parse_args(arguments)
    set_up_logs("debug" if given.verbose else "info")
    try:
        applications = [load_settings(Settings, file) for file in given.config or [None]]
        if given.command == "add":
            return _add(applications[0], given)
        check_applications(applications)
        check_access(applications[0].control)
        return serve(applications)
    except SettingsError as error:
        print(f"lsb-control: invalid settings\n{error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"lsb-control: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lsb-control",
        description="Shows what applications are doing, over HTTP.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version_of("lsb-control"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="run the service")
    add = commands.add_parser("add", help="add a user to control.users_file")
    add.add_argument("name", metavar="NAME")
    roles = [role.name.lower() for role in Role]
    add.add_argument("--role", choices=roles, required=True, help=", ".join(roles))
    add.add_argument("--token", action="store_true", help="for a program: print a new token, ask for no password")
    for command in (run, add):
        command.add_argument(
            "--config", type=Path, action="append", metavar="FILE", help="settings file (default: lsb.toml)"
        )
        command.add_argument("--verbose", action="store_true", help="log details")
    return parser


def _add(settings: Settings, given: argparse.Namespace) -> int:
    file = settings.control.users_file
    if file is None:
        raise SettingsError("control.users_file is missing: name the file to add the user to")
    token = access.add_user(file, given.name, Role[given.role.upper()], None if given.token else _password())
    if token is not None:
        print(token)
    print(f"{given.name} was added to {file}", file=sys.stderr)
    return 0


def _password() -> str:
    """Ask for a password twice, or read it from standard input if that is not a terminal."""
    try:
        if not sys.stdin.isatty():
            return sys.stdin.readline().rstrip("\r\n")
        password = getpass.getpass("password: ")
        if getpass.getpass("again: ") == password:
            return password
    except (EOFError, UnicodeError) as error:
        raise SettingsError("no password was given, or it is not UTF-8; nothing was added") from error
    raise SettingsError("the passwords differ; nothing was added")


if __name__ == "__main__":
    main()
