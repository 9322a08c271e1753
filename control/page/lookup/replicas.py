"""The page *Replicas*: which replica of an application was first to write the last results, and by how much.

Which was first is read from Kafka every few seconds while the page is visible. The rest is known anyway.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nicegui import ui

from control.facts.lookup.one_at_a_time import Unavailable
from control.facts.overview import replicas_of
from control.page.frame import TROUBLE, Visit, list_in, table_of
from control.page.lookup import replicas_content as content
from control.page.lookup.visible import WhileVisible

if TYPE_CHECKING:
    from control.facts.lookup.replicas import ReplicasRead
    from joiner.runtime.settings import JoinerSettings

_LEGEND: Final = (
    "Which replica was first, and its lead, follow from the times at which Kafka appended the results. Accepted: "
    "joiner merge delivers what the replica writes. Complete: the replica can go on alone without a gap."
)


class ReplicasSection:
    """See `control.page.frame.Section`."""

    def __init__(self, visit: Visit) -> None:
        self._watcher = visit.watcher
        self._has_replicas = has_replicas(visit.watcher.settings)
        self._last: ReplicasRead | None = None
        self._trouble = ""
        self._reading = WhileVisible("read replicas", self._read)

    def build(self) -> None:
        """See `Section`."""
        if not self._has_replicas:
            ui.label("This application has no other replicas.")
            return
        self._troubles = ui.column().props('role="status"')
        self._sentences = ui.column().classes("gap-1")
        self._table = table_of("Replicas", content.REPLICA_COLUMNS, "replica")
        ui.label(_LEGEND).classes("text-sm")
        self._reading.build()

    def refresh(self) -> None:
        """See `Section`."""
        if self._has_replicas:
            self._reading.refresh()
            self._show()

    async def _read(self) -> None:
        try:
            self._last, self._trouble = await self._watcher.lookup.replicas(), ""
        except Unavailable as why:
            self._trouble = f"What is shown about the last results is not current: {why}"
        if not self._table.is_deleted:
            self._show()

    def _show(self) -> None:
        found = replicas_of(self._watcher, self._last)
        troubles = content.troubles(self._watcher.facts, round(1000 * time.time()))
        list_in(self._troubles, [*([self._trouble] if self._trouble else []), *troubles], TROUBLE)
        list_in(self._sentences, content.sentences(found), "")
        rows = content.replica_rows(found)
        if self._table.rows != rows:
            self._table.rows = rows


def has_replicas(settings: JoinerSettings) -> bool:
    """Return whether an application has several replicas."""
    return settings.application.replicas > 1
