"""Does the interface show dead letters to all, their contents only to those who may see them, and never wait long?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.settings import SettingsError
from broker.stack.child import wait_until
from control.actions import dead_letter_contents as letter_contents
from control.actions.dead_letter_contents import DeadLetterContents
from control.facts.dead_letter_reading import LetterGone
from control.facts.dead_letters import DeadLetterPage, describe
from tests.unit.control.letters_made import NOW_MS, letter_text, message, record_text
from tests.unit.control.served import Served
from tests.unit.joiner.runtime.joiner_inputs import thing_of

BASE = "/api/v1/applications/lsb/dead-letters"
GOOD = record_text(thing=thing_of(0, 2))


class Topic:
    """The messages that are read on demand. ``fault``: what reading raises instead."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int], bytes | None] = {}
        self.fault: Exception | None = None
        self.is_slow = threading.Event()
        self.is_slow.set()

    def read(self, _consumer: Any, _clock: Any, place: tuple[str, int, int], _until_s: float) -> Any:
        topic, partition, offset = place
        assert topic == "machine.rejected"
        assert self.is_slow.wait(30)
        if self.fault is not None:
            raise self.fault
        if (partition, offset) not in self.texts:
            raise LetterGone("retention has removed it")
        return message(self.texts[partition, offset], partition, offset)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    made = Topic()
    monkeypatch.setattr(letter_contents, "read_message", made.read)
    monkeypatch.setattr(letter_contents, "make_reader", lambda *_given: SimpleNamespace(close=lambda: None))
    yield made
    made.is_slow.set()


@pytest.fixture
def served() -> Served:
    made = Served()
    watcher = made.watchers["lsb"]
    texts = [letter_text(GOOD, f"reason {n}", source="lsb" if n % 2 else "connector") for n in range(5)]
    watcher.letters.add(describe(watcher.settings, 0, n, NOW_MS + n, text)[0] for n, text in enumerate(texts))
    watcher.letters.renew(NOW_MS, "")
    return made


def page(served: Served, **query: Any) -> DeadLetterPage:
    response = served.client("vera-token").get(BASE, params=query)
    assert response.status_code == 200
    return msgspec.json.decode(response.content, type=DeadLetterPage)


def test_a_viewer_sees_the_dead_letters_without_their_contents(served: Served) -> None:
    found = page(served)
    assert [one.number for one in found.letters] == [5, 4, 3, 2, 1]
    assert (found.matching, found.kept, found.next, found.trouble, found.read_ms) == (5, 5, None, "", NOW_MS)
    assert [(one.source, one.kind, one.count) for one in found.reasons] == [
        ("connector", "reason #", 3),
        ("lsb", "reason #", 2),
    ]
    assert found.letters[1].refusal == ""
    assert "MQTT" in found.letters[0].refusal
    text = served.client("vera-token").get(BASE).text
    assert "phenomenonTime" not in text
    assert '"value"' not in text


def test_they_are_paged_and_filtered(served: Served) -> None:
    first = page(served, limit=2, source="connector")
    assert ([one.number for one in first.letters], first.next, first.matching) == ([5, 3], 3, 3)
    assert [one.number for one in page(served, before=first.next, limit=2, source="connector").letters] == [1]
    assert [one.number for one in page(served, reason="REASON 3").letters] == [4]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("?before=0", 422, "query.before"),
        ("?before=x", 422, "query.before"),
        ("?limit=201", 422, "query.limit"),
        ("?limit=0", 422, "query.limit"),
        (f"?reason={'x' * 301}", 422, "query.reason"),
        ("/0/x", 422, "path.offset"),
        ("/-1/0", 422, "path.partition"),
        (f"/0/{2**63}", 422, "path.offset"),
        (f"/{2**31}/0", 422, "path.partition"),
    ],
)
def test_what_makes_no_sense_is_refused(served: Served, path: str, status: int, reason: str) -> None:
    response = served.client("otto-token").get(BASE + path)
    assert response.status_code == status
    assert reason in response.json()["detail"]


def test_the_dead_letters_of_an_application_that_is_not_there_are_not_found(served: Served, topic: Topic) -> None:
    topic.texts[0, 1] = letter_text(GOOD)
    for path in ("", "/0/1"):
        response = served.client("otto-token").get(BASE.replace("lsb", "none") + path)
        assert (response.status_code, "no application with this name" in response.text) == (404, True)


def test_only_an_operator_sees_the_contents(served: Served, topic: Topic) -> None:
    topic.texts[1, 7] = letter_text(GOOD)
    refused = served.client("vera-token").get(f"{BASE}/1/7")
    assert refused.status_code == 403
    assert refused.json()["detail"] == "this needs the role operator, and vera is viewer"
    for token in ("otto-token", "ada-token"):
        response = served.client(token).get(f"{BASE}/1/7")
        found = msgspec.json.decode(response.content, type=DeadLetterContents)
        assert (found.value, found.encoding, found.is_whole, found.unchanged) == (GOOD.decode(), "utf-8", True, "")
        assert (found.letter.partition, found.letter.offset, found.letter.at_ms) == (1, 7, NOW_MS)
    served.users.roles["otto"] = served.users.roles["vera"]
    assert served.client("otto-token").get(f"{BASE}/1/7").status_code == 403


LONG = letter_text(b"").replace(b'"value":""', b'"value":"' + b"y" * 200_000 + b'"')
REJECTED, LETTER = "would be rejected again", "not a dead letter"


@pytest.mark.parametrize(
    ("text", "value", "more"),
    [
        (letter_text(b"{}"), "{}", ("utf-8", True, REJECTED)),
        (letter_text(b"\xff"), "/w==", ("base64", True, REJECTED)),
        (letter_text(b"x" * 70_000), "x" * 65_536, ("utf-8", False, "only part of its record's 70000 bytes")),
        (LONG, "y" * 100_000, ("utf-8", False, "only part of its record's 0 bytes")),
        (None, "", ("utf-8", True, LETTER)),
        (b"\x00garbage", "\x00garbage", ("utf-8", True, LETTER)),
        (b"\xff" * 70_000, None, ("base64", False, LETTER)),
    ],
)
def test_whatever_is_there_is_shown_up_to_a_limit(
    served: Served, topic: Topic, text: bytes | None, value: str | None, more: tuple[str, bool, str]
) -> None:
    topic.texts[0, 0] = text
    response = served.client("otto-token").get(f"{BASE}/0/0")
    found = msgspec.json.decode(response.content, type=DeadLetterContents)
    assert value is None or found.value == value
    assert len(found.value) <= 100_000
    encoding, is_whole, unchanged = more
    assert (found.encoding, found.is_whole) == (encoding, is_whole)
    assert unchanged in found.unchanged


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (LetterGone("retention has removed it"), 404, "there is no such dead letter: retention has removed it"),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")), 503, "it cannot be read: no answer"),  # noqa: SLF001 - its only name
        (SettingsError("the secret is missing"), 503, "it cannot be read: the secret is missing"),
        (RuntimeError("a secret"), 500, "an error in this program; see its log"),
    ],
)
def test_a_letter_that_cannot_be_read_is_told_with_the_reason(
    served: Served, topic: Topic, fault: Exception, status: int, reason: str
) -> None:
    topic.fault = fault
    # As often as there are readers, and once more: each has been given back.
    for _ in range(5):
        response = served.client("otto-token").get(f"{BASE}/0/0")
        assert (response.status_code, response.json()["detail"]) == (status, reason)


def test_slow_reads_neither_stop_the_service_nor_pile_up(served: Served, topic: Topic) -> None:
    topic.is_slow.clear()
    topic.texts[0, 0] = letter_text(GOOD)
    client = served.client("otto-token")
    found: list[int] = []
    with client:
        threads = [
            threading.Thread(target=lambda: found.append(client.get(f"{BASE}/0/0").status_code)) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        # One of five is refused, and the others go on only after that.
        assert wait_until(lambda: bool(found), 20.0)
        assert found == [503]
        assert client.get(BASE).status_code == 200
        topic.is_slow.set()
        for thread in threads:
            thread.join(30)
    assert sorted(found) == [200] * 4 + [503]
