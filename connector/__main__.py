"""The ``connector`` command: loads the settings, runs the service, and returns the exit status."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NoReturn

from broker.commandline import imports_of, leave, tune_gc, version_of

with imports_of("connector"):
    from confluent_kafka import KafkaException

    from broker.kafka.producer import DeliveryError
    from broker.kafka.topics import TopicError
    from broker.logs import set_up_logs
    from broker.settings import SettingsError, load_settings
    from connector.bridge import Bridge
    from connector.session import SessionRefusedError
    from connector.settings import Settings

_EXAMPLES = """\
examples:
  connector                                   settings from ./lsb.toml and the environment
  connector --config /etc/lsb.toml            with a different settings file
  LSB_MQTT__HOST=broker.local connector       with one setting from the environment
  LSB_CONNECTOR__IDLE_AFTER=10s connector     with watermarks for quantities that are silent for ten seconds

exit status: 0 stopped (SIGTERM, Ctrl-C), 1 failed, 2 invalid arguments or settings
"""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    leave(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the connector and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="connector",
        description="Forwards messages from MQTT to Kafka. Acknowledges each one once Kafka has all of its records.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (default: lsb.toml)")
    parser.add_argument("--version", action="version", version=version_of("connector"))
    parser.add_argument("--verbose", action="store_true", help="log details")
    given = parser.parse_args(arguments)
    set_up_logs("debug" if given.verbose else "info")
    tune_gc()
    stop = threading.Event()
    _stop_on_signals(stop)
    try:
        settings = load_settings(Settings, given.config)
        with imports_of("connector", "sparkplug"):
            bridge = Bridge(settings, stop.is_set)
        bridge.run()
    except SettingsError as error:
        print(f"connector: invalid settings\n{error}", file=sys.stderr)
        return 2
    except (DeliveryError, SessionRefusedError, TopicError) as error:
        print(f"connector: {error}", file=sys.stderr)
        return 1
    except KafkaException as error:
        print(f"connector: Kafka: {error.args[0].str()}", file=sys.stderr)
        return 1
    return 0


def _stop_on_signals(stop: threading.Event) -> None:
    """Shut down cleanly on SIGTERM or SIGINT; if the same signal arrives again, exit immediately."""

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


if __name__ == "__main__":
    main()
