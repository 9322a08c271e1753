"""``joiner status``: shows how far each unit of an application has progressed, and which process owns it.

`current_status` returns the same values as an object, which a notebook displays as tables.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from broker.kafka.topics import topic_facts
from joiner.runtime.clock import Clock, SystemClock
from joiner.runtime.kafka.clients import make_admin
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.membership.status.reading import read_status
from joiner.runtime.membership.status.summary import Status
from joiner.runtime.membership.status.tables import html_of, lines_of
from joiner.runtime.settings import JoinerSettings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_CLEAR: Final = "\x1b[H\x1b[2J"


class NotebookStatus(Status, frozen=True):
    """The status of an application, which a notebook displays as tables."""

    def _repr_html_(self) -> str:
        """Return the status as HTML tables."""
        return html_of(self)


def show_status(settings: JoinerSettings, clock: Clock, *, as_json: bool = False, every_s: float | None = None) -> int:
    """Print the status of an application, once or every ``every_s`` seconds until Ctrl-C.

    Return the exit status: 1 if the application has never run.
    """
    application = settings.application.name
    admin = make_admin(settings.kafka)
    if not _has_run(settings, admin):
        print(f"application {application!r} has never run: there is no topic {settings.state_topic}")
        return 1
    with closing(Readers(settings, clock)) as readers:
        try:
            while True:
                _print(read_status(admin, readers), as_json=as_json, is_watched=every_s is not None)
                if every_s is None:
                    return 0
                clock.sleep(every_s)
        except KeyboardInterrupt:
            if every_s is None:
                raise
            return 0


def current_status(settings: JoinerSettings) -> NotebookStatus | None:
    """Return an application's status, or None if it has never run. Raises KafkaException and `UnitStopped`."""
    admin = make_admin(settings.kafka)
    if not _has_run(settings, admin):
        return None
    with closing(Readers(settings, SystemClock())) as readers:
        status = read_status(admin, readers)
    return NotebookStatus(**msgspec.structs.asdict(status))


def _print(status: Status, *, as_json: bool, is_watched: bool) -> None:
    text = msgspec.json.encode(status).decode() if as_json else "\n".join(lines_of(status))
    is_screen = is_watched and not as_json and sys.stdout.isatty()
    print(f"{_CLEAR}{text}" if is_screen else text, flush=True)


def _has_run(settings: JoinerSettings, admin: AdminClient) -> bool:
    return settings.state_topic in topic_facts(admin, [settings.state_topic])
