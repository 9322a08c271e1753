"""Reads the settings of a replay from flags, environment variables and defaults, and validates them together.

A flag takes precedence over its environment variable, and a variable over the default. An empty variable is treated
as unset. All errors are reported at once, before anything is sent. The password has no flag, because other users of the
machine can read command lines.
"""

from __future__ import annotations

import argparse
import math
import os
import ssl
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.commandline import version_of

EXAMPLES = """\
examples:
  python simulator/simulator.py                          events.json to localhost:1883, 1000 messages/s, QoS 2
  python simulator/simulator.py --events big.json --rate max --qos 1
  python simulator/simulator.py --as-recorded            the file's own order instead of event-time order
  python simulator/simulator.py --rebase now --loop      endless, as if the machines were running now
  BROKER_HOST=broker MQTT_USERNAME=line4 MQTT_PASSWORD_FILE=secret python -m simulator --ca-file ca.pem

Every flag has an environment variable (named above); a flag overrides it. Exit status: 0 everything was sent and
acknowledged, 1 something was not, 2 invalid settings, 3 like 0, but some lines are not events (they are sent unchanged,
and the first is reported with the reason). Ctrl-C or SIGTERM stops within 5 s and reports what was sent."""

NO_EVENTS = 3
"""Exit status of a replay in which everything was sent and acknowledged, but some lines were not events."""

IN_FLIGHT_MAX = 65_535
"""Maximum number of messages in flight at a time, because MQTT packet ids have 16 bits."""
PASSWORD_BYTES_MAX = 65_535
"""Maximum length of an MQTT password in bytes."""


class SettingsError(Exception):
    """Raised if settings are invalid. `errors` contains one line per error."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = list(errors)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings of the connection to the broker.

    If `username` is None, the connection has no authentication; if `ca_file` is None, it has no TLS.
    """

    host: str
    port: int
    client_id: str
    topic: str
    qos: int
    version: str
    in_flight_max: int
    username: str | None = None
    password: str | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a replay.

    If `rate_per_s` is None, messages are sent as fast as possible. If `rounds` is None, the recording is replayed
    endlessly. If `rebase` is None, the original event times are kept.
    """

    link: LinkSettings
    events: Path
    rate_per_s: float | None
    read_first: int | None
    skip_first: int
    rounds: int | None
    as_recorded: bool
    time_unit: str
    rebase: str | None
    journal: Path | None
    connect_timeout_s: float


@dataclass(frozen=True, slots=True)
class _Option:
    flag: str
    variable: str
    default: str | None
    parse: Callable[[str], Any]
    help: str
    metavar: str | None = None
    const: str | None = None
    """The value to use if the flag is given without an argument."""


def read_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from the command-line arguments and the environment.

    `arguments` does not include the program's name. Raises SettingsError with all errors. Raises SystemExit for
    `--help` and `--version`, and if argparse cannot parse the arguments.
    """
    given = _parser().parse_args(arguments)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    errors: list[str] = []
    for option in _OPTIONS:
        name = option.flag.removeprefix("--").replace("-", "_")
        text, source = getattr(given, name), option.flag
        if text is None and environment.get(option.variable):
            text, source = environment[option.variable], option.variable
        if text is None:
            text, source = option.default, f"{option.flag} (default)"
        sources[name] = source
        try:
            values[name] = None if text is None else option.parse(text)
        except ValueError as error:
            errors.append(f"{source}: {error}")
    password = _password(values.get("password_file"), sources["password_file"], environment, errors)
    if password is not None and values.get("username") is None:
        errors.append("a password was given without a user name: set --username or MQTT_USERNAME")
    if errors:
        raise SettingsError(errors)
    return _settings(values, password)


def _settings(values: Mapping[str, Any], password: str | None) -> Settings:
    link = LinkSettings(
        host=values["host"],
        port=values["port"],
        client_id=values["client_id"] or f"lsb-simulator-{uuid.uuid4().hex[:12]}",
        topic=values["topic"],
        qos=values["qos"],
        version=values["mqtt_version"],
        in_flight_max=values["in_flight"],
        username=values["username"],
        password=password,
        ca_file=values["ca_file"],
    )
    loop = values["loop"]
    return Settings(
        link=link,
        events=values["events"],
        rate_per_s=None if math.isinf(values["rate"]) else values["rate"],
        read_first=values["read_first"],
        skip_first=values["skip_first"],
        rounds=1 if loop is None else loop or None,
        as_recorded=values["as_recorded"],
        time_unit=values["time_unit"],
        rebase=values["rebase"],
        journal=values["journal"],
        connect_timeout_s=values["connect_timeout"],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simulator",
        description="Replay an events file over MQTT, one message per line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version_of("simulator"))
    for option in _OPTIONS:
        default = "" if option.default is None else f", default {option.default}"
        parser.add_argument(
            option.flag,
            metavar=option.metavar,
            nargs=None if option.const is None else "?",
            const=option.const,
            help=f"{option.help} ({option.variable}{default})",
        )
    return parser


def _password(file: Path | None, source: str, environment: Mapping[str, str], errors: list[str]) -> str | None:
    """Return the password from MQTT_PASSWORD, or from the first line of the password file. Setting both is an error.

    `source` is the flag or the variable that gives the file, for error messages.
    """
    direct = environment.get("MQTT_PASSWORD") or None
    if file is None:
        return direct
    if direct is not None:
        errors.append("MQTT_PASSWORD and a password file are both set: remove one of them")
    try:
        with file.open("rb") as opened:
            line = opened.readline(PASSWORD_BYTES_MAX + 1).rstrip(b"\r\n").decode()
    except (OSError, UnicodeDecodeError) as error:
        errors.append(f"{source}: {file} cannot be read: {error}")
        return None
    if not line:
        errors.append(f"{source}: the first line of {file} is empty")
    return line


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    span = f"a whole number from {low}" + (" up" if high is None else f" to {high}")

    def parse(text: str) -> int:
        # Only ASCII digits are allowed: int() would also accept "1_000", " 7" and the digits of other scripts.
        digits = text.removeprefix("-")
        number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None  # noqa: PLR2004 - int64
        if number is None or number < low or (high is not None and number > high):
            msg = f"must be {span}, not {text!r}"
            raise ValueError(msg)
        return number

    return parse


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            msg = f"must be {' or '.join(choices)}, not {text!r}"
            raise ValueError(msg)
        return text

    return parse


def _rate(text: str) -> float:
    if text == "max":
        return math.inf
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 1e-3 <= rate <= 1e7:  # noqa: PLR2004 - one message in 17 minutes, and more than any broker accepts
        msg = f"must be from 0.001 to 10000000 messages/s, or max, not {text!r}"
        raise ValueError(msg)
    return rate


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 86_400:  # noqa: PLR2004 - a day
        msg = f"must be a number of seconds from 0 to 86400, not {text!r}"
        raise ValueError(msg)
    return seconds


def _rounds(text: str) -> int:
    return 0 if text == "endless" else _whole(1)(text)


def _truth(text: str) -> bool:
    truth = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.lower())
    if truth is None:
        msg = f"must be 1 or 0, not {text!r}"
        raise ValueError(msg)
    return truth


def _topic(text: str) -> str:
    if set("+#\0") & set(_text(text)):
        msg = f"must be a topic name without the wildcards + and #, not {text!r}"
        raise ValueError(msg)
    return text


def readable_file(text: str) -> Path:
    """Return the path of a file that can be read. Raises ValueError."""
    path = Path(_text(text))
    try:
        is_file, exists = path.is_file(), path.exists()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ValueError(message) from error
    if not is_file:
        kind = "is not a file" if exists else "does not exist"
        msg = f"{path} {kind} (current folder: {Path.cwd()}); to generate one, run `python -m simulator.generate`"
        raise ValueError(msg)
    if not os.access(path, os.R_OK):
        msg = f"this user has no permission to read {path}"
        raise ValueError(msg)
    return path


def _ca_file(text: str) -> Path:
    path = Path(_text(text))
    try:
        ssl.create_default_context(cafile=str(path))
    except (OSError, ssl.SSLError) as error:
        msg = f"{path} is not a usable certificate file: {error}"
        raise ValueError(msg) from None
    return path


def _path(text: str) -> Path:
    return Path(_text(text))


def _new_file(text: str) -> Path:
    path = Path(_text(text))
    if path.is_dir() or not path.parent.is_dir():
        msg = f"{path} cannot be written: it must not be a folder, and the folder that contains it must exist"
        raise ValueError(msg)
    return path


_OPTIONS = (
    _Option("--host", "BROKER_HOST", "localhost", _text, "host of the MQTT broker"),
    _Option("--port", "BROKER_PORT", "1883", _whole(1, 65_535), "port of the MQTT broker"),
    _Option(
        "--events", "EVENT_FILE", "events.json", readable_file, "the events file: one JSON object per line", "FILE"
    ),
    _Option("--topic", "TOPIC_NAME", "machine/states", _topic, "the MQTT topic"),
    _Option("--qos", "QOS", "2", _whole(0, 2), "quality of service", "0|1|2"),
    _Option("--rate", "SAMPLE_RATE", "1000", _rate, "messages per second, or max", "RATE"),
    _Option("--read-first", "READ_FIRST_N", None, _whole(1), "replay only N lines, after any skipped lines", "N"),
    _Option("--skip-first", "SKIP_FIRST_N", "0", _whole(0), "skip the first N lines", "N"),
    _Option(
        "--loop",
        "LOOP",
        None,
        _rounds,
        "number of rounds, or endless; each new round has new ids and later times",
        "N",
        const="endless",
    ),
    _Option(
        "--as-recorded",
        "AS_RECORDED",
        "0",
        _truth,
        "replay in file order instead of event-time order",
        "1|0",
        const="1",
    ),
    _Option(
        "--time-unit",
        "TIME_UNIT",
        "ms",
        _choice("s", "ms", "us", "ns"),
        "unit of numeric times, like the setting events.time_unit",
        "s|ms|us|ns",
    ),
    _Option(
        "--rebase",
        "REBASE",
        None,
        _choice("now", "end"),
        "shift all times so that the first (now) or the last (end) event is at the start of the replay",
        "now|end",
    ),
    _Option(
        "--journal",
        "JOURNAL_FILE",
        None,
        _new_file,
        "append a line for each event: its id, a tab, and the publish time in ns",
        "FILE",
    ),
    _Option(
        "--in-flight",
        "MAX_IN_FLIGHT",
        "1000",
        _whole(1, IN_FLIGHT_MAX),
        "maximum number of unacknowledged messages",
        "N",
    ),
    _Option("--connect-timeout", "CONNECT_TIMEOUT", "10", _seconds, "how long to wait for the broker at startup", "S"),
    _Option("--client-id", "MQTT_CLIENT_ID", None, _text, "client id, by default unique for each process", "ID"),
    _Option("--mqtt-version", "MQTT_VERSION", "5", _choice("5", "3.1.1"), "MQTT protocol version", "5|3.1.1"),
    _Option(
        "--username", "MQTT_USERNAME", None, _text, "user name; set the password with MQTT_PASSWORD or --password-file"
    ),
    _Option("--password-file", "MQTT_PASSWORD_FILE", None, _path, "file whose first line is the password", "FILE"),
    _Option("--ca-file", "MQTT_CA_FILE", None, _ca_file, "use TLS and trust these certificates", "FILE"),
)
