"""The command line of the local stack: ``python -m broker.stack`` or ``lsb-stack``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from broker.commandline import version_of
from broker.stack.errors import CancelledError, StackError
from broker.stack.local import DEFAULT_FOLDER, LocalStack, shown
from broker.stack.servers import Server

_EXAMPLES: Final = """\
examples:
  python -m broker.stack up                 start Kafka, the MQTT broker and InfluxDB
  python -m broker.stack up kafka           only Kafka
  python -m broker.stack up --fresh         with empty data folders
  python -m broker.stack fetch              only download or build their programs
  python -m broker.stack status             which servers are running, and where
  eval "$(python -m broker.stack env)"      set the servers' addresses in this shell
  python -m broker.stack logs kafka -n 50   the end of a log
  python -m broker.stack down               stop; the data is kept

environment:
  LSB_CACHE         folder for downloaded programs (default: parts in --dir)
  LSB_INFLUXD       an influxd 1.8 to use (default: the one on the path, otherwise built with Go)
  JAVA_HOME         the Java to run Kafka and the MQTT broker with (default: java on the path)

exit status: 0 success, 1 failure (status: a server is not running or does not answer), 2 invalid arguments
"""

_NAMES: Final = ("kafka", "mqtt", "influxdb")
_LOG_LINES: Final = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    # Check the names here: argparse's ``choices`` would reject an empty list, which means all servers.
    wrong = [name for name in options.servers if name not in _NAMES]
    if wrong:
        parser.error(f"unknown server: {', '.join(wrong)} (choose from {', '.join(_NAMES)})")
    if options.command == "keep":
        return _keep(options.dir)
    stack = LocalStack(options.dir, say=lambda line: print(line, flush=True))
    _cancel_on_signals(stack)
    chosen = [server for server in stack.servers if server.name in options.servers]
    try:
        return _COMMANDS[options.command](stack, chosen, options)
    except CancelledError:
        print("cancelled; all servers started by this command have been stopped", file=sys.stderr)
        return 1
    except (StackError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _up(stack: LocalStack, chosen: Sequence[Server], options: argparse.Namespace) -> int:
    if options.fresh:
        stack.down()
        stack.wipe()
    stack.up(chosen)
    print(f"settings  {shown(stack.environment_file)}")
    return 0


def _fetch(stack: LocalStack, chosen: Sequence[Server], options: argparse.Namespace) -> int:
    del options
    stack.fetch(chosen)
    return 0


def _down(stack: LocalStack, chosen: Sequence[Server], options: argparse.Namespace) -> int:
    del options
    stack.down(chosen)
    return 0


def _status(stack: LocalStack, chosen: Sequence[Server], options: argparse.Namespace) -> int:
    del options
    is_fine = True
    for server in chosen or stack.servers:
        pid = server.pid
        if pid is None:
            state, is_fine = "stopped", False
        elif server.paused:
            state, is_fine = f"paused (process {pid})", False
        elif server.is_ready():
            state = f"running at {server.address} (process {pid})"
        else:
            state, is_fine = f"does not answer at {server.address} (process {pid})", False
        print(f"{server.name:9} {state}  log {shown(server.log)}")
    return 0 if is_fine else 1


def _env(stack: LocalStack, chosen: Sequence[Server], options: argparse.Namespace) -> int:
    del chosen, options
    variables = stack.environment()
    if not variables:
        raise StackError("no server is running; start the servers with: python -m broker.stack up")
    for name, value in variables.items():
        print(f"export {name}='{value}'")
    return 0


def _logs(stack: LocalStack, chosen: Sequence[Server], options: argparse.Namespace) -> int:
    for server in chosen or stack.servers:
        print(f"== {shown(server.log)}")
        if server.log.exists():
            print("\n".join(server.log.read_text(errors="replace").splitlines()[-options.lines :]))
        else:
            print("(never started)")
    return 0


_COMMANDS: Final[dict[str, Callable[[LocalStack, Sequence[Server], argparse.Namespace], int]]] = {
    "up": _up,
    "fetch": _fetch,
    "down": _down,
    "status": _status,
    "env": _env,
    "logs": _logs,
}


def _keep(folder: Path) -> int:
    """Wait for standard input to end, which means that the stack's owner has exited. Then stop and remove the stack."""
    sys.stdin.buffer.read()
    if folder.is_dir():
        LocalStack(folder).down()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m broker.stack",
        description="Runs Kafka, an MQTT broker and InfluxDB on this machine, on the loopback interface only.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version_of("lsb-stack"))
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="FOLDER",
        help="folder for data, logs and programs (default: .lsb)",
    )
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("servers", nargs="*", metavar="server", help=f"{', '.join(_NAMES)} (default: all)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    up = commands.add_parser("up", parents=[common, chosen], help="start the servers, and wait until they are ready")
    up.add_argument("--fresh", action="store_true", help="first stop all servers and remove their data")
    fetch = "download or build the programs that are missing, and start nothing"
    commands.add_parser("fetch", parents=[common, chosen], help=fetch)
    commands.add_parser("down", parents=[common, chosen], help="stop the servers; their data is kept")
    commands.add_parser("status", parents=[common, chosen], help="show which servers are running, and where")
    env = commands.add_parser(
        "env", parents=[common], help="print the settings for the running servers as shell commands"
    )
    env.set_defaults(servers=[])
    logs = commands.add_parser("logs", parents=[common, chosen], help="show the end of each log")
    logs.add_argument("-n", "--lines", type=int, default=_LOG_LINES, help=f"lines to show (default: {_LOG_LINES})")
    keep = commands.add_parser(
        "keep", parents=[common], help="(for tests) stop and remove the stack when standard input ends"
    )
    keep.set_defaults(servers=[])
    return parser


def _cancel_on_signals(stack: LocalStack) -> None:
    """On Ctrl-C, SIGTERM or SIGHUP, cancel `LocalStack.up`. If the same signal arrives again, exit at once.

    The signal handler only sets a flag: if it raised an exception while Python was running a callback, the exception
    would be lost.
    """

    def cancel(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        stack.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, cancel)


if __name__ == "__main__":
    sys.exit(main())
