"""The page *Join*: what is held for each thing, which streams it waits for, and the last pairs of one thing.

The page's contents are read from Kafka every few seconds while it is visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nicegui import ui

from broker.wire.records import NAME_LENGTH_MAX
from control.facts.lookup.keys import Selection
from control.facts.lookup.one_at_a_time import Unavailable
from control.page.frame import TROUBLE, Visit, button_cells, list_in, table_of
from control.page.lookup import join_content
from control.page.lookup.visible import WhileVisible
from control.roles import Role
from joiner.operators import JoinSettings

if TYPE_CHECKING:
    from nicegui.events import ValueChangeEventArguments

    from control.facts.lookup.records import ThingRecords

_KEYS_SHOWN: Final = 50
_RECORDS_SHOWN: Final = 100
_THINGS: Final = "lsb-things"


class JoinSection:
    """See `control.page.frame.Section`."""

    def __init__(self, visit: Visit) -> None:
        self._visit, self._lookup = visit, visit.watcher.lookup
        self._operators = {one.name: one for one in visit.watcher.settings.operators}
        asked = visit.request.query_params
        self._operator = asked.get("join", "")
        if self._operator not in self._operators:
            self._operator = next(iter(self._operators))
        self._chosen = _clean(asked.get("thing", ""))
        """The thing shown. If it is an empty string, the thing with the most held records is chosen next."""
        self._offered: list[str] = []
        self._reading = WhileVisible("read keys and records", self._read)

    def build(self) -> None:
        """See `Section`."""
        with ui.row().classes("w-full items-end"):
            ui.select(
                [*self._operators], value=self._operator, label="Join or align", on_change=self._choose_operator
            ).classes("min-w-40")
            # Any name can be entered, even that of a thing for which nothing is held.
            self._thing = ui.input("Thing", value=self._chosen, on_change=self._choose_thing).props(
                f"debounce=500 list={_THINGS} autocomplete=off maxlength={NAME_LENGTH_MAX}"
            )
            self._things = ui.element("datalist").props(f"id={_THINGS}")
        self._troubles = ui.column().props('role="status"')
        self._notes = ui.column()
        self._contents = ui.column().classes("w-full")
        with self._contents:
            self._chart = ui.echart(join_content.plot(None)).classes("w-full h-96")
            self._summary = ui.label()
            self._pairs = table_of("The last pairs", join_content.PAIR_COLUMNS, "key")
        self._keys = table_of("Held records", join_content.KEY_COLUMNS, "key")
        choose = button_cells(
            self._keys, "thing", lambda event: self._thing.set_value(str(event.args)), "Show", "props.value"
        )
        choose.props('flat :label="props.value"')
        self._as_of = ui.column()
        self._reading.build()

    def refresh(self) -> None:
        """See `Section`."""
        self._reading.refresh()

    # What the user chooses

    def _choose_operator(self, event: ValueChangeEventArguments[str]) -> None:
        self._operator, self._chosen = event.value, ""
        self._reading.hurry()

    def _choose_thing(self, event: ValueChangeEventArguments[str | None]) -> None:
        # A user who empties the field is about to enter another name.
        if event.value:
            self._chosen = _clean(event.value)
            self._reading.hurry()

    # What is read

    async def _read(self) -> None:
        troubles: list[str] = []
        if self._visit.refusal(Role.OPERATOR):
            # Hide the contents even if nothing can be read, because the user may have had the role until now.
            self._show_contents(None)
        try:
            await self._show_keys(self._operator)
            await self._show_records(self._operator)
        except Unavailable as why:
            troubles = [f"The data shown is not current: {why}"]
        if not self._troubles.is_deleted:
            list_in(self._troubles, troubles, TROUBLE)

    async def _show_keys(self, operator: str) -> None:
        found = await self._lookup.keys(Selection(operator=operator), _KEYS_SHOWN)
        if self._is_outdated(operator):
            return
        rows = join_content.key_rows(found)
        if self._keys.rows != rows:
            self._keys.rows = rows
        list_in(self._as_of, join_content.as_of_lines(found), "")
        names = [key.thing for key in found.keys]
        if names != self._offered:
            self._offered = names
            self._things.clear()
            with self._things:
                for name in names:
                    ui.element("option").props["value"] = name
        if names and not self._chosen:
            self._chosen = names[0]
            self._thing.set_value(self._chosen)

    async def _show_records(self, operator: str) -> None:
        """Show the records of the chosen thing, if the user may see contents."""
        chosen, join = self._chosen, self._operators[operator]
        found, note = None, self._visit.refusal(Role.OPERATOR)
        if note:
            note = f"The last records of a thing and the pairs between them are not shown: {note}."
        elif not isinstance(join, JoinSettings):
            note = "The last records of a thing are shown for joins only."
        elif not chosen:
            note = "No records are held. Enter the name of a thing to see its last records."
        else:
            found = await self._lookup.records(join, chosen, _RECORDS_SHOWN)
            if self._visit.refusal(Role.OPERATOR):
                return
        if self._is_outdated(operator) or chosen != self._chosen:
            return
        list_in(self._notes, [note] if note else [], "")
        self._show_contents(found)

    def _show_contents(self, found: ThingRecords | None) -> None:
        self._contents.set_visibility(found is not None)
        self._summary.set_text("" if found is None else join_content.summary(found))
        self._pairs.rows = [] if found is None else join_content.pair_rows(found)
        self._chart.options.update(join_content.plot(found))
        self._chart.update()

    def _is_outdated(self, operator: str) -> bool:
        """Return whether the choice has changed since a reading began, or the page was closed."""
        return operator != self._operator or self._keys.is_deleted


def _clean(name: str) -> str:
    """Return a name of at most the allowed length, with question marks for what UTF-8 cannot represent."""
    return name[:NAME_LENGTH_MAX].encode(errors="replace").decode()
