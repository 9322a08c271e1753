"""Does the service say of replicas what is known of them, on its page and over HTTP, and read nothing without them?"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from control.facts.flow.meters import GroupMember, MergerFlow
from control.facts.lookup.leads import Compared, Lead, Leads, ReplicaLead
from control.facts.lookup.one_at_a_time import Unavailable
from control.facts.lookup.replicas import ReplicasRead
from control.facts.overview import ReplicaOverview, Replicas, replicas_of
from control.facts.reading import Facts
from control.page.lookup import replicas_content as content
from control.page.lookup.replicas import ReplicasSection, has_replicas
from control.page.pages import PLACES
from joiner.runtime.settings import JoinerSettings
from tests.unit.control.served import KnownLookup, Served
from tests.unit.control.topologies import MERGER, running, with_replicas
from tests.unit.joiner.runtime.joiner_inputs import make_settings

PATH = "/api/v1/applications/lsb/replicas"


def watcher_of(shape: tuple[JoinerSettings, Facts], lookup: Any = None) -> Any:
    return SimpleNamespace(settings=shape[0], facts=shape[1], lookup=lookup)


def read() -> ReplicasRead:
    return asyncio.run(KnownLookup().replicas())


def found(shape: tuple[JoinerSettings, Facts] | None = None, **changes: Any) -> Replicas:
    return msgspec.structs.replace(replicas_of(watcher_of(shape or with_replicas()), read()), **changes)


def test_each_replica_has_what_it_does_and_how_often_it_was_first() -> None:
    shown = found(with_replicas(served=[0, 3]))
    first, second = shown.replicas
    assert first == ReplicaOverview(
        replica=0,
        application="lsb",
        has_run=True,
        running=5,
        lag=0,
        rate=500.0,
        read_ms=1_000_000,
        missing=[],
        trouble="",
        first=6,
        share=0.6,
        lead=Lead(4, 9),
        accepted=2,
        complete=2,
    )
    assert (second.replica, second.application, second.running) == (1, "lsb.r1", 2)
    assert (second.first, second.share, second.lead, second.accepted, second.complete) == (3, 0.3, Lead(5, 7), 1, 0)
    assert (shown.units, shown.partitions, shown.merger, shown.merged) == (5, 2, MERGER, read().merged)


def test_what_could_not_be_read_is_not_taken_for_nothing() -> None:
    shown = replicas_of(watcher_of(with_replicas()), None)
    assert (shown.compared, shown.merged, shown.partitions) == (None, None, 0)
    for one in shown.replicas:
        assert (one.running, one.share, one.lead, one.accepted, one.complete) == (5, None, None, None, None)
    nothing = ReplicasRead(5, Leads(Compared(0, 0, 0, 0, 0, None), [ReplicaLead(0, None)] * 2), None)
    assert {one.share for one in replicas_of(watcher_of(with_replicas()), nothing).replicas} == {None}


def test_before_anything_is_known_a_replica_is_not_known() -> None:
    settings, _ = with_replicas()
    shown = replicas_of(watcher_of((settings, Facts(replicas={1: Facts()}))), None)
    assert [one.read_ms for one in shown.replicas] == [None, None]
    for row in content.replica_rows(shown):
        assert (row["units running"], row["lag"]) == ("not known", "not known")


def test_an_application_without_others_has_none() -> None:
    assert replicas_of(watcher_of(running()), None) == Replicas("lsb", 5)


# Over HTTP


def test_the_replicas_are_told_over_http() -> None:
    served = Served()
    settings, facts = with_replicas()
    served.watchers["lsb"].settings, served.watchers["lsb"].facts = settings, facts
    response = served.client("vera-token").get(PATH)
    assert msgspec.json.decode(response.content, type=Replicas) == found()
    assert response.json()["compared"]["lead"] == {"median_ms": 4, "p99_ms": 9}
    assert served.lookup.asked == [("replicas",)]
    served.lookup.trouble = Unavailable("no broker", 7)
    response = served.client("vera-token").get(PATH)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "7")
    assert served.client().get(PATH).status_code == 401


def test_without_replicas_nothing_is_read() -> None:
    served = Served()
    response = served.client("vera-token").get(PATH)
    assert (response.status_code, response.json()["replicas"]) == (200, [])
    assert served.lookup.asked == []
    assert served.client("vera-token").get(PATH.replace("lsb", "none")).status_code == 404


# On the page


def test_the_page_is_linked_only_if_there_are_replicas() -> None:
    (place,) = [one for one in PLACES if one.title == "Replicas"]
    assert place.is_for is has_replicas
    assert has_replicas(make_settings(application={"replicas": 2}))
    assert not has_replicas(make_settings())
    assert sum(one.is_for(make_settings()) for one in PLACES) == len(PLACES) - 1


def test_the_page_of_an_application_without_replicas_reads_nothing() -> None:
    # It was opened by its address.
    visit: Any = SimpleNamespace(watcher=watcher_of(running()))
    section = ReplicasSection(visit)
    section.refresh()


def test_a_replica_has_a_row() -> None:
    first, second = content.replica_rows(found(with_replicas(served=[0, 3])))
    assert first == {
        "replica": 0,
        "runs as": "lsb",
        "units running": "5 of 5",
        "lag": 0,
        "records/s": 500,
        "first to write": "6",
        "share": "60.0%",
        "median lead": "4 ms",
        "p99 lead": "9 ms",
        "accepted": "2 of 2",
        "complete": "2 of 2",
    }
    assert (second["units running"], second["share"], second["accepted"], second["complete"]) == (
        "2 of 5",
        "30.0%",
        "1 of 2",
        "0 of 2",
    )
    assert list(first) == list(content.REPLICA_COLUMNS)


def test_what_is_not_known_is_left_out_of_a_row() -> None:
    for row in content.replica_rows(replicas_of(watcher_of(with_replicas()), None)):
        assert [row[name] for name in content.REPLICA_COLUMNS[5:]] == [""] * 6
    settings, facts = with_replicas()
    never = msgspec.structs.replace(facts.replicas[1], status=None, rates=[], lag=0)
    shown = replicas_of(watcher_of((settings, msgspec.structs.replace(facts, replicas={1: never}))), None)
    assert content.replica_rows(shown)[1]["units running"] == "has never run"


def test_what_was_compared_is_said_in_words_with_its_time() -> None:
    assert content.sentences(found()) == [
        (
            "10 results were compared, first written from 1970-01-01 00:16:39 to 00:16:39 UTC. The first replica led "
            "the next by 4 ms in the median, and by 9 ms at the 99th percentile."
        ),
        "Written first by several replicas in the same millisecond: 1.",
        "Written by only some of the replicas so far, and not compared: 2.",
        "Partitions read: 2 of 5.",
        "joiner merge: host-a merges; host-b waits. Its last commit about the results: 1970-01-01 00:16:39 UTC.",
    ]
    midnight = msgspec.structs.replace(read().leads.compared, begin_ms=86_399_000, end_ms=86_401_000)
    assert "from 1970-01-01 23:59:59 to 1970-01-02 00:00:01 UTC" in content.sentences(found(compared=midnight))[0]


def test_if_nothing_was_compared_no_lead_is_claimed() -> None:
    nothing = Compared(0, 0, 0, 0, 0, None)
    assert content.sentences(found(compared=nothing, partitions=5, merged=None)) == [
        "No result of the last minute before the newest one was written by several replicas.",
        "joiner merge: host-a merges; host-b waits.",
    ]
    assert content.sentences(found(compared=None, merged=None)) == ["joiner merge: host-a merges; host-b waits."]


@pytest.mark.parametrize(
    ("merger", "sentence"),
    [
        (None, "Whether joiner merge is running is not known."),
        (MergerFlow(fault="not authorized"), "Whether joiner merge is running is not known: not authorized."),
        (MergerFlow([]), "joiner merge is not running."),
        (MergerFlow([GroupMember("a", [])]), "joiner merge: nobody merges yet; a waits."),
        (MergerFlow([GroupMember(name, [0] * (name == "c")) for name in "abc"]), "joiner merge: c merges; a, b wait."),
    ],
)
def test_the_merger_is_described(merger: MergerFlow | None, sentence: str) -> None:
    assert content.sentences(found(merger=merger, merged=None, compared=None)) == [sentence]


def test_what_concerns_the_other_replicas_is_a_trouble() -> None:
    _, facts = with_replicas(3)
    replicas = {
        2: msgspec.structs.replace(facts.replicas[2], missing=["lsb.r2.state [1] cannot be read"]),
        1: msgspec.structs.replace(facts.replicas[1], trouble="no broker"),
    }
    facts = msgspec.structs.replace(facts, trouble="shown on every page", replicas=replicas)
    assert content.troubles(facts, 1_000_500) == [
        "Replica 1: The data shown is not current: no broker",
        "Replica 2: lsb.r2.state [1] cannot be read",
    ]
    assert "Replica 2: The data shown was read 20 s ago" in content.troubles(facts, 1_020_000)
