"""The page where users give orders and see what came of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nicegui import run, ui

from control.actions.desk import KeyReused, NotAccepted
from control.page import content, forms
from control.page.frame import TROUBLE, Visit, list_in, table_of
from control.roles import Role
from joiner.runtime.membership.ordering import OrderRefused

if TYPE_CHECKING:
    from control.actions.desk import Desk
    from control.actions.orders import Order
    from control.facts.reading import Facts

_SHOWN_MAX: Final = 50
_YES: Final = "yes"


class ActionsSection:
    """See `control.page.frame.Section`."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._desk: Desk = visit.desk
        self._kinds = [kind for kind, order in forms.KINDS.items() if order.role <= visit.role]
        self._inputs: dict[str, Any] = {}

    def build(self) -> None:
        """See `Section`."""
        if self._kinds:
            with ui.row().classes("w-full items-start"):
                self._kind = ui.select(self._kinds, value=self._kinds[0], label="Order", on_change=self._show_fields)
                self._kind.classes("w-full sm:w-80")
                self._fields = ui.row().classes("items-start")
                self._button = ui.button("Check", on_click=self._check).props("unelevated")
        else:
            ui.label(f"Orders need the role {Role.OPERATOR.name.lower()}.")
        self._alerts = ui.column().props('role="alert"')
        self._troubles = ui.column().props('role="status"')
        if self._kinds:
            self._show_fields()
        self._actions = table_of("What was ordered", content.ACTION_COLUMNS, "key").props("wrap-cells")

    def refresh(self) -> None:
        """See `Section`."""
        list_in(self._troubles, [self._desk.trouble] if self._desk.trouble else [], TROUBLE)
        rows = content.action_rows(self._desk.actions(_SHOWN_MAX), self._desk.refusals)[:_SHOWN_MAX]
        if self._actions.rows != rows:
            self._actions.rows = rows
        self._offer(self._visit.watcher.facts)

    def _show_fields(self) -> None:
        if not self._is_allowed(Role.OPERATOR):
            return
        self._fields.clear()
        self._inputs = {}
        with self._fields:
            for field in forms.INPUTS[self._kind.value]:
                self._inputs[field.name] = self._input(field).classes("w-full sm:w-56")
        self._offer(self._visit.watcher.facts)

    @staticmethod
    def _input(field: forms.Input) -> Any:
        match field.kind:
            case "choice":
                return ui.select([], label=field.label, clearable=True)
            case "number":
                return ui.number(field.label, min=0, precision=0, format="%d")
            case _:
                return ui.input(field.label)

    def _offer(self, facts: Facts) -> None:
        """Offer the current choices."""
        if not self._kinds:
            return
        for name, options in forms.options(self._kind.value, facts, self._visit.watcher.settings).items():
            chosen = self._inputs[name]
            if chosen.options != options:
                chosen.set_options(options, value=chosen.value if chosen.value in options else None)

    async def _check(self) -> None:
        """Ask the user to confirm the order in the form."""
        # A second click must not ask again.
        self._button.disable()
        try:
            if self._is_allowed(Role.OPERATOR) and (order := await self._checked()) is not None:
                # If the order has to be repeated, the key stays the same.
                await self._order(order, uuid.uuid4().hex)
        finally:
            self._button.enable()

    async def _checked(self) -> Order | None:
        """Return the order if it can be carried out and the user confirms it."""
        fields = {name: given.value for name, given in self._inputs.items()}
        desk, watcher = self._desk, self._visit.watcher
        try:
            order = forms.order_of(self._kind.value, fields, watcher.facts)
            would = await run.io_bound(desk.plan, order)
        except OrderRefused as refused:
            self._alert(str(refused))
            return None
        self._alert("")
        # None: the service is stopping.
        return order if would is not None and await self._is_confirmed(order, would) else None

    async def _is_confirmed(self, order: Order, would: Sequence[str]) -> bool:
        with ui.dialog().props('aria-label="Confirm the order" transition-duration=0') as dialog, ui.card():
            ui.label(f"{forms.describe(order)}?").classes("text-lg")
            for sentence in would:
                ui.label(sentence)
            with ui.row():
                ui.button("Do it", on_click=lambda: dialog.submit(_YES), color=None).props("outline no-caps")
                ui.button("Cancel", on_click=lambda: dialog.submit(None), color=None).props("outline no-caps")
        answer = await dialog
        if not dialog.is_deleted:
            dialog.delete()
        return bool(answer == _YES)

    async def _order(self, order: Order, key: str) -> None:
        # The role may have changed since the page was opened.
        user = self._visit.user()
        if not self._is_allowed(order.role) or user is None:
            return
        self._alert("The order is being recorded.")
        try:
            await run.io_bound(self._desk.accept, order, key, user.name)
        except (OrderRefused, KeyReused) as error:
            self._alert(str(error))
        except NotAccepted as error:
            self._alert(str(error))
            if error.may_count:
                with self._alerts:
                    ui.button("Try again", on_click=lambda: self._order(order, key)).props("flat")
        else:
            self._alert("")
        self.refresh()

    def _is_allowed(self, role: Role) -> bool:
        refusal = self._visit.refusal(role)
        if refusal:
            self._alert(refusal)
        return not refusal

    def _alert(self, why: str) -> None:
        self._alerts.clear()
        list_in(self._alerts, [why] if why else [], TROUBLE)
