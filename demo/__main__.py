"""The demo's command line: ``python -m demo``, or ``make demo``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException

from broker.kafka.topics import TopicError
from broker.settings import SettingsError
from broker.stack.errors import StackError
from demo.flow import Stalled
from demo.run import Demo
from demo.services import ServiceFailed
from demo.task import Wishes, read_task
from joiner.check.found.evidence import EvidenceError

_EXAMPLES = """\
examples:
  make demo                                       10 s of generated events; the join moves to Spark midway
  make demo RUNNER=process                        the join stays in a process
  make demo RUNNER=spark                          the join stays in Spark
  make demo EVENTS=events.json                    your own recording, in event-time order
  make demo EVENTS=events.json AS_RECORDED=1      in file order, keeping its disorder
  make demo UI=1                                  with a web page; everything runs until Ctrl-C
  python -m demo --events-count 100000 --rate max

Exit status: 0 every expected result is there exactly once; 1 otherwise, or if something failed; 2 invalid arguments or
settings (nothing was started); 130 stopped by Ctrl-C or SIGTERM.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    wishes = Wishes(**vars(_parser().parse_args(arguments)))
    if wishes.move:
        print("demo: without RUNNER, the join moves anyway; the next release will not accept MOVE=1", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if Demo(read_task(wishes)).run() else 1
    except SettingsError as error:
        print(f"demo: invalid arguments or settings\n{error}", file=sys.stderr)
        return 2
    except (StackError, ServiceFailed, Stalled, EvidenceError, TopicError, OSError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except KafkaException as error:
        print(f"\nFAILED: Kafka: {error.args[0].str()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped: all services and servers are stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Replays events from MQTT through Kafka and the joiner to InfluxDB, moves the running join from a "
        "process to Spark, and verifies that no result is missing or duplicated. Everything runs on this machine, "
        "keeps its files in .lsb/demo, and is stopped at the end.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", type=Path, default=os.environ.get("EVENTS") or None, help="events file (EVENTS)")
    parser.add_argument(
        "--events-count", type=int, default=20_000, help="events to generate if no events file is given (20000)"
    )
    parser.add_argument("--rate", default="2000", help="events per second, or max (2000)")
    parser.add_argument("--seed", type=int, default=1, help="seed for generated events (1)")
    # Without this flag, the simulator still reads AS_RECORDED from the environment.
    parser.add_argument("--as-recorded", action="store_true", help="replay in file order (AS_RECORDED=1)")
    parser.add_argument(
        "--runner",
        default=os.environ.get("RUNNER") or None,
        help="process or spark: run the whole join there; by default it moves from a process to Spark (RUNNER)",
    )
    # Still accepted because the previous release moved the join only with this flag. With --runner, the join moves from
    # that runner to the other one.
    parser.add_argument("--move", action="store_true", default=bool(os.environ.get("MOVE")), help=argparse.SUPPRESS)
    parser.add_argument(
        "--ui",
        action="store_true",
        default=bool(os.environ.get("UI")),
        help="start the control service as well, and keep everything running until Ctrl-C (UI=1)",
    )
    parser.add_argument("--folder", type=Path, default=Path(".lsb/demo"), help="data and logs (.lsb/demo)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
