"""``joiner drain``, ``pin``, ``standbys`` and ``retry``: give an order for a site while data flows."""

from __future__ import annotations

import argparse

from joiner.runtime.clock import Clock
from joiner.runtime.membership.ordering import Ordering, OrderRefused, Outcome, UnknownUnit
from joiner.runtime.settings import JoinerSettings


def give_order(settings: JoinerSettings, options: argparse.Namespace, clock: Clock) -> int:
    """Give the order named by the command, and print the outcome. Return the exit status.

    The status is 0 once the order is carried out, 2 if the unit does not exist, and 1 otherwise, such as if the order
    is refused or is not carried out in time. An order that was written then stays in force, unless it is a `Retry`.
    """
    began_s = clock.monotonic_s()

    def report(text: str) -> None:
        print(f"{clock.monotonic_s() - began_s:7.3f} s  {text}", flush=True)

    site = options.at or settings.application.site
    ordering = Ordering(settings, site, options.timeout, clock, report)
    try:
        outcome, note = _give(ordering, options)
    except OrderRefused as refused:
        print(refused)
        return 2 if isinstance(refused, UnknownUnit) else 1
    print(outcome.text + note if outcome.is_reached else outcome.text)
    return 0 if outcome.is_reached else 1


def _give(ordering: Ordering, options: argparse.Namespace) -> tuple[Outcome, str]:
    """Return the outcome of the order, and a note to append to it if the order has been carried out."""
    match options.command:
        case "drain":
            note = "" if options.undo else f"; `joiner drain {options.name} --undo` undoes this"
            return ordering.drain(options.name, undo=options.undo), note
        case "pin":
            note = "" if options.undo else f" and stays there; `joiner pin {options.unit} --undo` unpins it"
            return ordering.pin(options.unit, options.name or ""), note
        case "standbys":
            note = "" if options.undo else "; `joiner standbys --undo` returns to the settings"
            return ordering.standbys(options.count), note
        case _:
            return ordering.retry(options.unit), ""
