"""Is each record put back exactly once, whatever fails, and is it told when that is not known?"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicError, TopicFacts
from broker.settings import SettingsError
from control.actions import reinjection
from control.actions.audit import PutBack, decode_put_back
from control.actions.reinjection import PLACES_MAX, Outcome, PutBackError, put_back, transactional_id
from tests.manual_clock import ManualClock
from tests.unit.control.letters_made import NOW_MS, letter_text, record_text
from tests.unit.control.transactions import POINTS, Broker, Died, Stored, failing
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings, thing_of

SETTINGS = make_settings(partitions=2)
TRANSACTIONAL_ID = transactional_id(SETTINGS)
THINGS = [thing_of(unit, 2) for unit in range(2)]
GOOD = [record_text(thing=thing, id=f"e{unit}") for unit, thing in enumerate(THINGS)]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(SETTINGS)
    for unit in range(2):
        made.letters[unit, 7] = letter_text(GOOD[unit], partition=unit)
    made.letters[1, 8] = letter_text(b"{}", partition=1, offset=4)
    made.install(monkeypatch)
    return made


def put(*places: tuple[int, int], value: bytes | None = None, **options: Any) -> list[Outcome]:
    options.setdefault("clock", ManualClock(NOW_MS / 1e3))
    return put_back(SETTINGS, places, "ada", value, **options)


def audited(broker: Broker) -> list[PutBack]:
    return [one for _, _, value in broker.committed(broker.audit[0]) if (one := decode_put_back(value)) is not None]


def test_records_and_what_is_to_be_known_of_them_are_written_together(broker: Broker) -> None:
    outcomes = put((0, 7), (1, 7))
    assert outcomes == [Outcome(unit, 7, is_done=True, to_topic=DATA, to_partition=unit) for unit in range(2)]
    assert broker.committed(DATA) == [(unit, THINGS[unit].encode(), GOOD[unit]) for unit in range(2)]
    assert audited(broker) == [
        PutBack(id=f"{DATA}:{unit}:3", partition=unit, offset=7, to_topic=DATA, to_partition=unit, by="ada", at=NOW_MS)
        for unit in range(2)
    ]


def test_those_that_cannot_be_put_back_say_why_and_hinder_no_others(broker: Broker) -> None:
    refused, done, gone = put((1, 8), (0, 7), (0, 9))
    assert (refused.is_done, done.is_done, gone.is_done) == (False, True, False)
    assert "give a corrected value" in refused.reason
    assert gone.reason == "there is no such dead letter: retention"
    assert len(broker.committed(DATA)) == len(audited(broker)) == 1


def test_a_corrected_value_is_written_instead_and_that_is_noted(broker: Broker) -> None:
    corrected = record_text(thing=THINGS[1], id="corrected")
    assert put((1, 8), value=corrected) == [Outcome(1, 8, is_done=True, to_topic=DATA, to_partition=1)]
    assert broker.committed(DATA) == [(1, THINGS[1].encode(), corrected)]
    assert [one.is_corrected for one in audited(broker)] == [True]


def test_what_was_put_back_is_refused_unless_again_is_asked_for(broker: Broker) -> None:
    put((0, 7))
    (outcome,) = put((0, 7))
    assert not outcome.is_done
    assert outcome.reason.startswith("its record was put back already, at 2019-04-01 ")
    assert outcome.reason.endswith("UTC by ada; use again=true to repeat it")
    assert len(broker.committed(DATA)) == 1
    assert put((0, 7), again=True)[0].is_done
    assert len(broker.committed(DATA)) == len(audited(broker)) == 2


def test_two_letters_about_one_record_put_it_back_once(broker: Broker) -> None:
    # After a reset, the joiner rejects the same record again.
    broker.letters[0, 8] = broker.letters[0, 7]
    assert [one.is_done for one in put((0, 7), (0, 8), (0, 7), again=True)] == [True, False, False]
    assert [one.is_done for one in put((0, 8))] == [False]
    assert len(broker.committed(DATA)) == 1


def test_a_dry_run_says_the_same_and_neither_writes_nor_fences_anybody(broker: Broker) -> None:
    places = (0, 7), (1, 8), (1, 7)
    expected = put(*places, dry_run=True)
    assert broker.audit not in broker.logs
    assert (broker.producers, broker.committed(DATA)) == (0, [])
    assert put(*places) == expected
    (before, *_), number = put(*places, dry_run=True), broker.producers
    assert "was put back already" in before.reason
    broker.logs[broker.audit].append(Stored(b"", None))  # another one is at work
    assert put((0, 7), dry_run=True)[0].reason == before.reason
    assert broker.producers == number


def test_if_nothing_can_be_put_back_nothing_is_written_or_created(broker: Broker) -> None:
    assert [one.is_done for one in put((1, 8), (0, 9))] == [False, False]
    assert broker.producers == 0
    assert broker.audit not in broker.logs


def test_a_topic_that_is_gone_is_not_created_again(broker: Broker) -> None:
    del broker.logs[DATA, 1]
    first, second = put((0, 7), (1, 7))
    assert (first.is_done, second.reason) == (True, f"{DATA} [1] no longer exists")
    del broker.logs[DATA, 0]
    assert put((0, 7), again=True)[0].reason == f"{DATA} [0] no longer exists"


@pytest.mark.parametrize("count", [0, PLACES_MAX + 1])
def test_as_many_as_can_be_put_back_at_once_are_said(broker: Broker, count: int) -> None:
    with pytest.raises(PutBackError, match=f"{count} dead letters .* 1 to {PLACES_MAX}"):
        put(*[(0, 7)] * count)
    assert broker.producers == 0


def test_a_corrected_value_is_for_one_letter_alone(broker: Broker) -> None:
    with pytest.raises(PutBackError, match="one at a time"):
        put((0, 7), (1, 7), value=GOOD[0])
    assert broker.producers == 0


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_any_point_neither_loses_nor_doubles(broker: Broker, point: str, number: int) -> None:
    broker.at = failing(point, Died(), number)
    try:
        put((0, 7), (1, 7))
    except Died:
        survived = False
    else:
        survived = True
    assert survived == (number > 0 and "produce" not in point)
    broker.at = Broker.at
    outcomes = put((0, 7), (1, 7))
    assert {one.is_done for one in outcomes} == {not survived and point != "after commit"}
    assert [value for _, _, value in broker.committed(DATA)] == GOOD
    assert len(audited(broker)) == 2


@pytest.mark.parametrize("point", POINTS)
def test_of_two_services_at_once_neither_doubles_what_the_other_puts_back(broker: Broker, point: str) -> None:
    others: list[Outcome] = []

    def at(found: str) -> None:
        if found == point:
            broker.at = Broker.at
            # Another process, which has its own lock.
            alone = reinjection._one_at_a_time[TRANSACTIONAL_ID]  # noqa: SLF001 - as above
            alone.release()
            others.extend(put((0, 7)))
            alone.acquire()

    broker.at = at
    if point in {"before init", "after commit"}:
        # One of them is through before the other begins.
        is_first = point == "after commit"
        assert [one.is_done for one in put((0, 7), (1, 7))] == [is_first, True]
    else:
        with pytest.raises(PutBackError, match="another control service is putting records back") as failed:
            put((0, 7), (1, 7))
        assert failed.value.is_open == (point == "before commit")
        assert [one.is_done for one in put((0, 7), (1, 7))] == [False, True]
    assert [one.is_done for one in others] == [point != "after commit"]
    assert sorted(value for _, _, value in broker.committed(DATA)) == sorted(GOOD)


def error(code: int, *, retriable: bool = False, fatal: bool = False, abort: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "the cause", fatal, retriable, abort))


TIMED_OUT = KafkaError._TIMED_OUT  # noqa: SLF001 - its only name


def test_a_lost_answer_is_asked_for_again(broker: Broker) -> None:
    for point in ("before init", "after commit"):
        broker.at = failing(point, error(TIMED_OUT, retriable=True))
        assert put((0, 7), again=True)[0].is_done
    # The answer to the second commit was lost, and the request repeated.
    assert len(broker.committed(DATA)) == 2


@pytest.mark.parametrize("point", POINTS[:-1])
def test_an_error_that_requires_an_abort_aborts_and_says_that_nothing_was_put_back(broker: Broker, point: str) -> None:
    broker.at = failing(point, error(1, abort=True))
    with pytest.raises(PutBackError, match="nothing was put back: the cause; try again") as failed:
        put((0, 7))
    assert not failed.value.is_open
    assert (broker.committed(DATA), broker.opened) == ([], [])
    broker.at = Broker.at
    assert put((0, 7))[0].is_done


def test_a_commit_without_an_answer_is_told_as_not_known(broker: Broker) -> None:
    clock = ManualClock(NOW_MS / 1e3)

    def at(point: str) -> None:
        if point == "after commit":
            clock.now_s += 20
            raise error(TIMED_OUT, retriable=True)

    broker.at = at
    with pytest.raises(PutBackError, match="it is not known whether the records were put back: the cause") as failed:
        put((0, 7), clock=clock)
    assert failed.value.is_open
    broker.at = Broker.at
    assert "was put back already" in put((0, 7))[0].reason
    assert len(broker.committed(DATA)) == 1


def test_a_permission_that_is_missing_is_told_as_such(broker: Broker) -> None:
    broker.at = failing("before init", error(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True))
    with pytest.raises(PutBackError, match="nothing was put back: the cause"):
        put((0, 7))


@pytest.mark.parametrize("cause", [TopicError("the topic is wrong"), SettingsError("the secret cannot be read")])
def test_an_audit_topic_that_cannot_be_used_means_that_nothing_is_put_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    def fail(*_given: object) -> None:
        raise cause

    monkeypatch.setattr(reinjection, "ensure_topics", fail)
    with pytest.raises(PutBackError, match=f"nothing was put back: {cause}"):
        put((0, 7))
    assert broker.committed(DATA) == []


def test_what_the_audit_topic_does_not_show_yet_is_waited_for_and_never_ignored(broker: Broker) -> None:
    broker.logs[broker.audit] = [Stored(b"", None)]
    clock = ManualClock(NOW_MS / 1e3)
    with pytest.raises(PutBackError, match=r"lsb\.audit has an open transaction"):
        put((0, 7), clock=clock)
    assert clock.now_s > NOW_MS / 1e3 + 20
    assert broker.committed(DATA) == []
    broker.logs[broker.audit][0].state = "aborted"
    assert put((0, 7))[0].is_done


def test_an_audit_topic_that_this_broker_does_not_know_yet_is_not_taken_for_an_empty_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put((0, 7))
    monkeypatch.setattr(reinjection, "topic_facts", lambda *_given: {DATA: TopicFacts("id", 2)})
    assert "was put back already" in put((0, 7))[0].reason


def test_a_record_of_a_later_release_stops_everything(broker: Broker) -> None:
    broker.logs[broker.audit] = [Stored(b'{"kind":"putback","format":2}', None, "committed")]
    with pytest.raises(PutBackError, match="comes from a later release"):
        put((0, 7))
    assert broker.committed(DATA) == []


def test_other_records_of_the_audit_topic_do_not_matter(broker: Broker) -> None:
    texts = (b"", b"x", b'{"kind":"other","format":9}')
    broker.logs[broker.audit] = [Stored(text, None, "committed") for text in texts]
    assert put((0, 7))[0].is_done


def test_a_time_that_makes_no_sense_is_no_error(broker: Broker) -> None:
    put((0, 7))
    stored = broker.logs[broker.audit][0]
    stored.value = stored.value.replace(str(NOW_MS).encode(), b"9" * 18)
    assert "at an unknown time by ada" in put((0, 7))[0].reason


def test_a_call_that_hangs_is_given_up_and_does_not_commit_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reinjection, "_GRACE_S", 0.05)
    hangs, has_ended = threading.Event(), threading.Event()

    def at(point: str) -> None:
        if point == "after begin":
            broker.at = Broker.at
            assert hangs.wait(30)

    abort = reinjection._abort  # noqa: SLF001 - the last that the abandoned call does

    def noted(producer: Any) -> None:
        abort(producer)
        has_ended.set()

    monkeypatch.setattr(reinjection, "_abort", noted)
    broker.at = at
    with pytest.raises(PutBackError, match="nothing was put back: a call to the Kafka client did not return") as failed:
        put((0, 7), deadline_s=0.05)
    assert not failed.value.is_open
    hangs.set()
    assert has_ended.wait(30)
    assert broker.committed(DATA) == []
    assert put((0, 7))[0].is_done


def test_a_second_call_waits_for_the_first_but_not_for_ever(broker: Broker) -> None:
    put((0, 7))
    before = broker.producers
    with reinjection._one_at_a_time[TRANSACTIONAL_ID]:  # noqa: SLF001 - the first call
        with pytest.raises(PutBackError, match="is putting back other records"):
            put((1, 7), deadline_s=0.01)
        # A dry run fences nobody.
        assert put((1, 7), dry_run=True, deadline_s=0.01)[0].is_done
        assert broker.producers == before
    assert put((1, 7))[0].is_done


def test_a_call_for_one_application_does_not_wait_for_that_of_another(broker: Broker) -> None:
    with reinjection._one_at_a_time.setdefault("other-control-put-back", threading.Lock()):  # noqa: SLF001 - as above
        assert put((0, 7), deadline_s=5)[0].is_done
