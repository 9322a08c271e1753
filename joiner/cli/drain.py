"""``joiner drain``: takes all units from an instance while data flows, or lets it have units again."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from broker.kafka.topics import topic_facts
from joiner.runtime.clock import Clock
from joiner.runtime.control import Drain
from joiner.runtime.kafka.clients import make_admin
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.membership.observer import read_sites
from joiner.runtime.settings import JoinerSettings

_LOOK_S: Final = 0.2


def drain(
    settings: JoinerSettings, site: str, instance: str, timeout_s: float, clock: Clock, *, undo: bool = False
) -> int:
    """Order that ``instance`` at ``site`` be given no units, and wait until it has none. Return the exit status.

    The status is 1 if the instance is not running at the site, or if it still has units after ``timeout_s``. In the
    latter case, the order remains. ``undo``: order that it may have units again, and do not wait. The instance need not
    be running, because the order to drain it outlives it.
    """
    name = settings.application.name
    if settings.control_topic not in topic_facts(make_admin(settings.kafka), [settings.control_topic]):
        print(f"application {name!r} has never run: there is no topic {settings.control_topic}")
        return 1
    state = read_sites(settings, clock).get(site)
    is_live = state is not None and instance in state.live
    if not undo and not is_live:
        running = "none" if state is None or not state.live else ", ".join(sorted(state.live))
        print(f"application {name!r} has no instance {instance!r} at site {site!r}; running there: {running}")
        return 1
    began_s = clock.monotonic_s()
    with closing(ControlLog(settings)) as control:
        control.write(Drain(site=site, instance=instance, drained=not undo))
    if undo:
        print(f"{instance} may have units again{'' if is_live else '; it is not running now'}")
        return 0
    left: list[int] | None = None
    while clock.monotonic_s() - began_s < timeout_s:
        state = read_sites(settings, clock).get(site)
        beat = None if state is None else state.live.get(instance)
        serves = [] if beat is None else sorted({*beat.serves, *beat.claims})
        if serves != left:
            left = serves
            print(f"{clock.monotonic_s() - began_s:7.3f} s  {instance} serves {_listed(serves)}", flush=True)
        if not serves:
            print(f"{instance} is drained; `joiner drain {instance} --undo` lets it have units again")
            return 0
        clock.sleep(_LOOK_S)
    print(f"{instance} still serves {_listed(left or [])}: no other instance takes over; the order remains")
    return 1


def _listed(units: list[int]) -> str:
    return "no unit" if not units else f"unit{'s' if len(units) > 1 else ''} {', '.join(map(str, units))}"
