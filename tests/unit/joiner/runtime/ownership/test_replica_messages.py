"""Do the errors of a replica tell the operator to reset, move or retry that replica, and not the application itself?"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from broker.kafka.topics import TopicError, TopicFacts
from joiner.runtime.kafka import topics as watching
from joiner.runtime.model import StateLog, UnitStopped, encode, manifest_key
from joiner.runtime.ownership import assignment, claim, eligibility, restore
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.settings import JoinerSettings, replica_settings
from joiner.runtime.task.unit import Unit
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint, make_manifest

ORIGIN: Final = make_settings(application={"replicas": 2})
FACTS: Final = {DATA: TopicFacts("id", 1)}
CLAIMANT: Final = Claimant("run", "one")

_COMMAND: Final = re.compile(r"`joiner (\w+)([^`]*)`")


def found(settings: JoinerSettings, **changes: Any) -> Any:
    return make_checkpoint(**{"fingerprint": settings.fingerprint(), **changes})


def readers(settings: JoinerSettings) -> Any:
    return SimpleNamespace(settings=settings, stable=None, clock=ManualClock(), log=None)


def in_log(settings: JoinerSettings, low: int, end: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eligibility, "log_range", lambda *_given: (low, end))
        eligibility.check_log_range(readers(settings), 0, {DATA: 5})


def never_begun(settings: JoinerSettings) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim, "group_offsets", lambda *_given: {DATA: 5})
        claim._check_never_begun(readers(settings), 0)  # noqa: SLF001 - a claim begins with it


def restored(settings: JoinerSettings, **changes: Any) -> None:
    manifest = make_manifest(1, 1, **({"offsets": {DATA: 12}, "fingerprint": settings.fingerprint()} | changes))
    state = StateLog(0, {manifest_key(0, 1): encode(manifest)})
    restore._from_snapshot(settings, 0, state, found(settings))  # noqa: SLF001 - every restore calls it


ERRORS: Final[dict[str, Callable[[JoinerSettings], object]]] = {
    "an input topic is gone": lambda given: eligibility.check_topics_exist(given, 0, {}),
    "other settings": lambda given: eligibility.check_continues(
        given, found(given, fingerprint="another"), FACTS, CLAIMANT
    ),
    "a topic is another": lambda given: eligibility.check_continues(
        given, found(given, topics={DATA: "another"}), FACTS, CLAIMANT
    ),
    "another site": lambda given: eligibility.check_continues(given, found(given, site="another"), FACTS, CLAIMANT),
    "removed input": lambda given: in_log(given, 6, 9),
    "lost input": lambda given: in_log(given, 0, 4),
    "a lost state topic": never_begun,
    "a snapshot under other settings": lambda given: restored(given, fingerprint="another"),
    "a snapshot ahead": lambda given: restored(given, offsets={DATA: 99}),
    "a damaged snapshot": restored,
    "an unreadable snapshot": lambda given: Unit.restore(given, 0, b"no snapshot"),
}


def commands_of(text: str, name: str) -> list[str]:
    named = _COMMAND.findall(text)
    assert named, f"{name}: {text}"
    return [rest for _, rest in named]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_the_replica_that_is_to_be_reset(name: str) -> None:
    with pytest.raises(UnitStopped) as of_replica:
        ERRORS[name](replica_settings(ORIGIN, 1))
    assert all(rest.endswith(" --replica 1") for rest in commands_of(str(of_replica.value), name))
    with pytest.raises(UnitStopped) as of_application:
        ERRORS[name](ORIGIN)
    assert not any("--replica" in rest for rest in commands_of(str(of_application.value), name))


@pytest.mark.parametrize("replica", [0, 1])
def test_a_topic_that_changes_while_a_replica_runs_names_the_replica(replica: int) -> None:
    reset = replica_settings(ORIGIN, replica).application.command("reset")
    wanted = "`joiner reset --replica 1`" if replica else "`joiner reset`"
    answers: list[Any] = [
        SimpleNamespace(exception=lambda: None, result=lambda: SimpleNamespace(topic_id="new", partitions=[0]))
    ]
    admin: Any = SimpleNamespace(poll=lambda _timeout: None)
    watch = watching.TopicWatch(admin, FACTS, ManualClock(), reset=reset)
    with pytest.raises(TopicError, match=re.escape(wanted)):
        watch._judge({DATA: answers[0]})  # noqa: SLF001 - `check` calls it with Kafka's answers


def test_a_defect_is_retried_for_the_replica_that_has_it() -> None:
    action: Any = SimpleNamespace(failed="processing a batch failed", note="")
    retry = replica_settings(ORIGIN, 1).application.command("retry 3 --at green")
    why = assignment._why(3, ValueError("no"), action, retry)  # noqa: SLF001 - the text that is logged
    assert "Run `joiner retry 3 --at green --replica 1`" in why
