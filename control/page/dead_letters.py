"""The dead letters page: a table with filters, and each letter's contents for users who may see them."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nicegui import run, ui

from control.actions.dead_letter_contents import contents_of
from control.actions.desk import KeyReused, NotAccepted
from control.actions.orders import PutRecordsBack
from control.page import dead_letter_content as content
from control.page.frame import TROUBLE, Visit, button_cells, list_in, table_of
from control.problem import Problem
from control.roles import Role
from joiner.runtime.membership.ordering import OrderRefused

if TYPE_CHECKING:
    from nicegui.events import GenericEventArguments

    from control.actions.dead_letter_contents import DeadLetterContents
    from control.facts.dead_letters import DeadLetter, DeadLetterPage

_PAGE: Final = 50
_TEXT_MAX: Final = 300
_ALL: Final = ""
_WRAP: Final = "overflow-wrap: anywhere"


class LetterSection:
    """See `control.page.frame.Section`."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._letters = visit.watcher.letters
        self._page: DeadLetterPage | None = None
        self._before: int | None = None
        """Show only letters with lower numbers. None: show the newest, which change as new ones arrive."""
        self._opened = ""
        self._letter: DeadLetter | None = None
        self._original = ""
        self._key, self._action = "", ""
        """The idempotency key of the next order for the opened letter, and the id of the action to watch."""

    def build(self) -> None:
        """See `Section`."""
        self._troubles = ui.column().props('role="status"')
        self._summary = ui.label()
        with ui.row().classes("w-full items-center"):
            self._source = ui.select({_ALL: "all"}, value=_ALL, label="Source", on_change=self._show_newest)
            self._source.props("dense options-dense outlined").classes("w-48")
            self._reason = ui.input("Reason contains", on_change=self._show_newest)
            self._reason.props(f'dense outlined debounce="300" maxlength="{_TEXT_MAX}"').classes("w-64")
            ui.button("Clear filters", on_click=lambda: self._choose("", ""), color=None).props("outline no-caps")
        with ui.column().classes("gap-1") as self._groups:
            ui.label("Most frequent reasons").classes("text-weight-bold")
            self._kinds = [
                ui.button(on_click=partial(self._choose_kind, number), color=None).props(
                    "flat dense no-caps align=left"
                )
                for number in range(content.REASONS_SHOWN)
            ]
        self._table = table_of("Dead letters", content.LETTER_COLUMNS, "key").props("wrap-cells")
        show = button_cells(self._table, "show", self._open, "Show the dead letter", "props.row.key")
        show.props("outline label=Show")
        with ui.row():
            self._newest = ui.button("Newest", on_click=self._show_newest, color=None).props("outline no-caps")
            self._older = ui.button("Older", on_click=self._show_older, color=None).props("outline no-caps")
        self._build_dialog()

    def refresh(self) -> None:
        """See `Section`."""
        self._follow_action()
        page = self._letters.page(self._before, _PAGE, str(self._source.value or ""), str(self._reason.value or ""))
        if page == self._page:
            return
        self._page = page
        trouble = f"The dead letters are not current: {page.trouble}" if page.trouble else ""
        list_in(self._troubles, [trouble] if trouble else [], TROUBLE)
        self._summary.set_text(content.summary(page))
        chosen = str(self._source.value or "")
        options = {_ALL: "all"} | {name: content.visible(name) or "unknown" for name in [*page.sources, chosen] if name}
        if self._source.options != options:
            self._source.set_options(options, value=chosen)
        texts = content.describe_reasons(page)
        self._groups.set_visibility(bool(texts))
        for number, button in enumerate(self._kinds):
            button.set_visibility(number < len(texts))
            button.set_text(texts[number] if number < len(texts) else "")
        rows = content.letter_rows(page)
        if self._table.rows != rows:
            self._table.rows = rows
        self._newest.set_enabled(self._before is not None)
        self._older.set_enabled(page.next is not None)

    def _build_dialog(self) -> None:
        with (
            ui.dialog().props('aria-label="A dead letter" transition-duration="0"') as self._dialog,
            ui.card().classes("w-full max-w-3xl"),
        ):
            self._details = ui.column().classes("gap-1").style(_WRAP)
            self._notes = ui.column().classes("gap-1").style(_WRAP).props('role="status"')
            self._contents = ui.textarea("Contents").props("outlined").classes("w-full font-mono")
            self._outcome = ui.label().props('role="alert"').style(_WRAP)
            with ui.row():
                self._put = ui.button("Put back", on_click=self._put_back, color=None).props("outline no-caps")
                ui.button("Close", on_click=self._dialog.close, color=None).props("outline no-caps")

    def _choose(self, source: str, reason: str) -> None:
        self._source.set_value(source)
        self._reason.set_value(reason)
        self._show_newest()

    def _choose_kind(self, number: int) -> None:
        if self._page is not None and number < len(self._page.reasons):
            one = self._page.reasons[number]
            self._choose(one.source, one.kind)

    def _show_newest(self) -> None:
        self._show(None)

    def _show_older(self) -> None:
        if self._page is not None and self._page.next is not None:
            self._show(self._page.next)

    def _show(self, before: int | None) -> None:
        """Show the letters below a number at once. As in the frame, the user must still be logged in."""
        self._before = before
        if self._visit.user() is not None:
            self.refresh()

    async def _open(self, event: GenericEventArguments) -> None:
        found = self._find(event.args)
        if found is None:
            return
        self._opened = content.key_of(found)
        # If the order has to be repeated, the key stays the same.
        self._key, self._action, self._letter = uuid.uuid4().hex, "", found
        self._outcome.set_text("")
        self._put.set_visibility(False)
        list_in(self._details, content.details(found), "")
        self._contents.set_value("")
        self._contents.set_visibility(False)
        refused = self._visit.refusal(Role.OPERATOR)
        list_in(self._notes, [f"The contents cannot be shown: {refused}" if refused else "Reading the contents …"], "")
        self._dialog.open()
        if not refused:
            await self._show_contents(found)

    async def _show_contents(self, letter: DeadLetter) -> None:
        found: DeadLetterContents | None = None
        try:
            found = await contents_of(self._visit.watcher.settings, letter.partition, letter.offset)
            texts = content.notes(found)
        except Problem as problem:
            texts = [f"The contents cannot be shown: {content.visible(problem.detail)}"]
        if self._opened != content.key_of(letter):
            return  # another letter was opened in the meantime
        list_in(self._notes, texts, "")
        if found is not None:
            self._original = content.visible(found.value, "\n\t")
            self._contents.set_value(self._original)
            self._contents.set_visibility(True)
            may_put_back = not letter.refusal and not self._visit.refusal(Role.ADMIN)
            self._put.set_visibility(may_put_back)
            self._contents.set_enabled(may_put_back)

    async def _put_back(self) -> None:
        """Order the record to be put back, with its contents as edited by the user."""
        refused, letter = self._visit.refusal(Role.ADMIN), self._letter
        user = self._visit.user()
        if refused or user is None or letter is None:
            self._outcome.set_text(refused)
            return
        value = str(self._contents.value or "")
        corrected = None if value == self._original else value
        order = PutRecordsBack(dead_letters=[(letter.partition, letter.offset)], value=corrected)
        self._put.disable()
        try:
            accepted = await run.io_bound(self._visit.desk.accept, order, self._key, user.name)
        except (OrderRefused, NotAccepted) as error:
            self._outcome.set_text(str(error))
        except KeyReused:
            # The contents have changed since the first order.
            self._key = uuid.uuid4().hex
            self._outcome.set_text("an order for this dead letter was already given: see Actions, or try again")
        else:
            self._action = accepted.action.id if accepted is not None else ""
            self._outcome.set_text("Putting the record back …")
        finally:
            self._put.enable()

    def _follow_action(self) -> None:
        """Show what came of the order."""
        action = self._visit.desk.action(self._action) if self._action else None
        if action is not None and action.ended_ms is not None:
            self._action, self._key = "", uuid.uuid4().hex
            self._outcome.set_text(f"{action.state}: {action.text}")

    def _find(self, key: Any) -> DeadLetter | None:
        letters = [] if self._page is None else self._page.letters
        return next((one for one in letters if content.key_of(one) == key), None)
