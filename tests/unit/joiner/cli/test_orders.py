"""Do `joiner drain`, `pin`, `standbys` and `retry` give the order that is meant, and exit with its status?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from joiner.cli import orders
from joiner.cli.main import build_parser
from joiner.runtime.membership.ordering import OrderRefused, Outcome, UnknownUnit
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

DONE: Final = Outcome(is_reached=True, text="done")
NOT_DONE: Final = Outcome(is_reached=False, text="not done; the order remains")

Given = Callable[..., int]


class Orders:
    """Stands in for an `Ordering`: notes the orders, and has one outcome for all."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.outcome: Outcome | Exception = DONE

    def __call__(self, _settings: Any, site: str, timeout_s: float, clock: ManualClock, report: Any) -> Any:
        self.given.append((site, timeout_s))
        clock.now_s += 0.25
        report("a line")
        return self

    def _give(self, *order: Any) -> Outcome:
        self.given.append(order)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def drain(self, instance: str, *, undo: bool) -> Outcome:
        return self._give("drain", instance, undo)

    def pin(self, unit: int, instance: str) -> Outcome:
        return self._give("pin", unit, instance)

    def standbys(self, count: int | None) -> Outcome:
        return self._give("standbys", count)

    def retry(self, unit: int) -> Outcome:
        return self._give("retry", unit)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Orders:
    fake = Orders()
    monkeypatch.setattr(orders, "Ordering", fake)
    return fake


def run(*arguments: str) -> int:
    return orders.give_order(make_settings(), build_parser().parse_args(arguments), ManualClock())


@pytest.mark.parametrize(
    ("arguments", "order", "last"),
    [
        (["drain", "one"], ("drain", "one", False), "done; `joiner drain one --undo` undoes this"),
        (["drain", "one", "--undo"], ("drain", "one", True), "done"),
        (["pin", "3", "one"], ("pin", 3, "one"), "done and stays there; `joiner pin 3 --undo` unpins it"),
        (["pin", "3", "--undo"], ("pin", 3, ""), "done"),
        (["standbys", "0"], ("standbys", 0), "done; `joiner standbys --undo` returns to the settings"),
        (["standbys", "2"], ("standbys", 2), "done; `joiner standbys --undo` returns to the settings"),
        (["standbys", "--undo"], ("standbys", None), "done"),
        (["retry", "3"], ("retry", 3), "done"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_each_command_gives_its_order_and_prints_what_follows(
    given: Orders, capsys: pytest.CaptureFixture[str], arguments: list[str], order: Any, last: str
) -> None:
    assert run(*arguments) == 0
    assert given.given == [("process", 30.0), order]
    assert capsys.readouterr().out.splitlines() == ["  0.250 s  a line", last]


def test_the_site_and_the_time_to_wait_can_be_given(given: Orders) -> None:
    assert run("retry", "3", "--at", "spark", "--timeout", "2s") == 0
    assert given.given[0] == ("spark", 2.0)


@pytest.mark.parametrize(
    ("outcome", "status", "last"),
    [
        (NOT_DONE, 1, "not done; the order remains"),
        (OrderRefused("no instance"), 1, "no instance"),
        (UnknownUnit("no unit 3"), 2, "no unit 3"),
    ],
)
@pytest.mark.parametrize("arguments", [["drain", "one"], ["pin", "3", "one"], ["standbys", "1"], ["retry", "3"]])
def test_the_exit_status_says_how_an_order_has_ended(
    given: Orders,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    outcome: Outcome | Exception,
    status: int,
    last: str,
) -> None:
    given.outcome = outcome
    assert run(*arguments) == status
    assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["pin", "3"], "one of the arguments INSTANCE --undo is required"),
        (["pin", "3", "one", "--undo"], "not allowed with argument INSTANCE"),
        (["pin", "3", ""], "the instance name is empty"),
        (["pin", "one", "3"], "'one' is not a unit"),
        (["drain", ""], "the instance name is empty"),
        (["standbys"], "one of the arguments N --undo is required"),
        (["standbys", "3"], "'3' is not a number of standbys: use 0 to 2"),
        (["standbys", "-1"], "standbys"),
        (["retry"], "UNIT"),
        (["retry", "x"], "'x' is not a unit"),
        (["retry", "3", "--at", "Green"], "not a site"),
    ],
)
def test_what_an_order_cannot_mean_is_status_2(
    given: Orders, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert what in capsys.readouterr().err.splitlines()[-1]
    assert given.given == []
