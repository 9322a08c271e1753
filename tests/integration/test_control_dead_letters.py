"""Can dead letters be read by those who may, and are records put back exactly once, whoever dies or freezes?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from playwright.sync_api import Browser, expect

from control.access.users import add_user
from control.actions.audit import decode_put_back
from control.actions.reinjection import Outcome, put_back
from control.actions.tasks import ANSWER_S, SILENT_S
from control.roles import Role
from tests.integration.browser import SEEN_MS, Visitor, needs_browser
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import (
    BASE_MS,
    PARTITIONS,
    Application,
    Entry,
    application,
    record,
    seeded_entries,
    things_over_all_units,
)
from tests.integration.putting_back import POINTS
from tests.integration.services import DEADLINE_S, ROOT, ends_of, is_stopped, read_topic, topic_reader, wait_until

pytestmark = pytest.mark.slow

THING = things_over_all_units(9)[8]
"""None of the things of `seeded_entries`."""
HOSTILE = '<img src=x onerror="alert(1)">\u202e'


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def bad(identity: str) -> Entry:
    """Return a record without a result, which the joiner rejects."""
    content = {"thing": THING, "quantity": "torque", "phenomenonTime": BASE_MS, "id": identity}
    return Entry(THING, json.dumps(content).encode())


def letters(control: ControlService, app: Application, query: str = "") -> Any:
    return control.get(f"applications/{app.name}/dead-letters{query}")


def contents(control: ControlService, app: Application, letter: Any) -> Any:
    return control.get(f"applications/{app.name}/dead-letters/{letter['partition']}/{letter['offset']}")


def test_the_dead_letters_of_the_joiner_appear_and_their_contents_need_a_role(app: Application, tmp_path: Path) -> None:
    users = tmp_path / "users"
    tokens = {role: add_user(users, role.name.lower(), role, None) or "" for role in (Role.VIEWER, Role.OPERATOR)}
    with control_service(app.config, tmp_path, LSB_CONTROL__USERS_FILE=str(users)) as control:
        control.token = tokens[Role.VIEWER]
        # The topic does not exist yet.
        wait_until(lambda: letters(control, app)["read_ms"] is not None, "the service has looked for the topic")
        assert letters(control, app)["trouble"] == ""
        app.create_topics()
        joiner = app.start()
        wrong = (app.unit_of(THING) + 1) % PARTITIONS
        good = record(THING, "torque", BASE_MS, 1.0, "misplaced")
        app.produce([bad("b1"), good._replace(partition=wrong), Entry(THING, b"\xff\x00"), Entry(THING, None)])
        app.wait_until_through()
        wait_until(lambda: letters(control, app)["kept"] == 4, "the dead letters are shown")
        found = letters(control, app)["letters"]
        rejected = app.rejected()
        for letter in found:
            expected = rejected[letter["origin"]["partition"], letter["origin"]["offset"]]
            assert (letter["id"], letter["reason"], letter["source"]) == (expected.id, expected.reason, app.name)
            assert (letter["topic"], letter["length"], letter["refusal"]) == (app.topic("data"), expected.length, "")
        missing = letters(control, app, "?reason=missing%20required")["letters"]
        assert [letter["reason"] for letter in missing] == ["Object missing required field `result`"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            contents(control, app, missing[0])
        control.token = tokens[Role.OPERATOR]
        shown = contents(control, app, missing[0])
        assert (shown["value"].encode(), shown["is_whole"]) == (bad("b1").value, True)
        assert "would be rejected again" in shown["unchanged"]
        # Further ones arrive while the service runs.
        app.produce([bad("b2")])
        wait_until(lambda: letters(control, app)["kept"] == 5, "the next dead letter is shown")
        newest = letters(control, app, "?limit=1")["letters"][0]
        assert newest["number"] == 5
        cut = TopicPartition(app.topic("rejected"), newest["partition"], newest["offset"] + 1)
        for future in app.admin().delete_records([cut], operation_timeout=DEADLINE_S).values():
            future.result()
        with pytest.raises(urllib.error.HTTPError) as gone:
            contents(control, app, newest)
        assert (gone.value.code, "retention has removed" in gone.value.read().decode()) == (404, True)
        assert joiner.stop() == 0


def reject(app: Application, number: int) -> tuple[tuple[int, int], str]:
    """Let the joiner reject a record. Return the place of its dead letter, and a corrected value that is joined."""
    time_ms = BASE_MS + 1_000 * number
    before, after = (record(THING, "speed", time_ms + at, 2.0, f"speed{number}-{at}") for at in (0, 2))
    app.produce([before, bad(f"bad{number}"), after])
    app.wait_until_through()
    places: list[tuple[int, int]] = []

    def is_rejected() -> bool:
        # Kafka acknowledges a commit before it is visible in all partitions.
        places[:] = [place for place, value in read_places(app).items() if f'bad{number}\\"' in value.decode()]
        return bool(places)

    wait_until(is_rejected, "there is a dead letter")
    (place,) = places
    corrected = record(THING, "torque", time_ms + 1, 3.0, f"corrected{number}").value
    assert corrected is not None
    return place, corrected.decode()


def read_places(app: Application) -> dict[tuple[int, int], bytes]:
    """Return the committed dead letters by their partitions and offsets."""
    topic, found = app.topic("rejected"), dict[tuple[int, int], bytes]()
    with closing(topic_reader(app.bootstrap, f"{topic}.reader")) as consumer:
        ends = ends_of(consumer, topic, PARTITIONS)
        unread = {number for number, end in enumerate(ends) if end}
        consumer.assign([TopicPartition(topic, number, 0) for number in unread])

        def is_read() -> bool:
            for message in consumer.consume(1_000, 0.2):
                partition, offset = message.partition() or 0, message.offset() or 0
                if message.error() is None:
                    found[partition, offset] = message.value() or b""
                elif offset >= ends[partition]:
                    unread.discard(partition)
            return not unread

        wait_until(is_read, "the dead letters are read")
    return found


def start(app: Application, place: tuple[int, int], value: str, at: str = "") -> subprocess.Popen[str]:
    arguments = [str(app.config), *map(str, place), value]
    environment = {**os.environ, **({"LSB_AT": at} if at else {})}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.putting_back", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def correct(app: Application, place: tuple[int, int], value: str) -> Outcome:
    """Put a corrected record back in this process, and return the outcome."""
    (outcome,) = put_back(app.settings(), [place], "ada", value.encode())
    return outcome


def outcome_of(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 0, errors
    return json.loads(out)


def copies(app: Application, value: str) -> int:
    """Return how often a value is committed in the input topic."""
    return app.values("data").count(value.encode())


def are_put_back(app: Application, *values: str) -> bool:
    """Return whether each value is once in the input topic."""
    return [copies(app, value) for value in values] == [1] * len(values)


def is_joined(app: Application, number: int) -> bool:
    return any(f'"corrected{number}"'.encode() in value for value in app.values("out"))


def test_a_corrected_record_is_joined_once_although_whoever_puts_it_back_dies_at_any_step(app: Application) -> None:
    app.create_topics()
    joiner = app.start()
    app.produce(seeded_entries(95, 200))
    values = {}
    for number, point in enumerate(POINTS):
        place, values[number] = reject(app, number)
        dying = start(app, place, values[number], f"{point}:KILL")
        dying.communicate(timeout=2 * DEADLINE_S)
        assert dying.returncode == -signal.SIGKILL
        if point == "committed":
            app.wait_until_decided()
            assert are_put_back(app, values[number])
        else:
            assert copies(app, values[number]) == 0
        assert correct(app, place, values[number]).is_done == (point != "committed")
        assert "by ada; use again=true" in correct(app, place, values[number]).reason
        app.wait_until_through()
        wait_until(partial(is_joined, app, number), "the corrected record is joined")
    assert [copies(app, value) for value in values.values()] == [1] * len(values)
    audited = [decode_put_back(one.value) for one in read_topic(app.bootstrap, f"{app.name}.audit", 1)]
    assert len({one.id for one in audited if one is not None}) == len(audited) == len(values)
    assert len(app.rejected()) == len(values)
    assert joiner.stop() == 0
    app.verify()


@pytest.mark.long
def test_of_two_at_once_one_puts_the_record_back(app: Application) -> None:
    app.create_topics()
    joiner = app.start()
    values = {}
    for number, point in enumerate(point for point in POINTS if point != "committed"):
        place, values[number] = reject(app, number)
        frozen = start(app, place, values[number], f"{point}:STOP")
        wait_until(partial(is_stopped, frozen), "the first process is frozen")
        assert correct(app, place, values[number]).is_done
        frozen.send_signal(signal.SIGCONT)
        assert "was put back already" in outcome_of(frozen)["reason"]
    place, values[-1] = reject(app, 9)
    racing = [start(app, place, values[-1]) for _ in range(2)]
    for process in racing:
        outcome_of(process)
    app.wait_until_decided()
    assert are_put_back(app, *values.values())
    app.wait_until_through()
    assert joiner.stop() == 0
    app.verify()


@pytest.mark.long
def test_a_service_that_dies_while_it_writes_is_told_and_its_orders_can_be_repeated(
    app: Application, tmp_path: Path
) -> None:
    app.create_topics()
    joiner = app.start()
    place, value = reject(app, 1)
    orders: list[dict[str, Any]] = [
        {"kind": "putback", "dead_letters": [place], "value": value},
        {"kind": "watermark", "thing": THING, "time": BASE_MS + 900},
    ]
    with control_service(app.config, tmp_path, "first") as first, control_service(app.config, tmp_path) as second:
        given = [first.order(app.name, order)["id"] for order in orders]
        first.kill()
        for action in given:
            told = second.outcome(app.name, action, SILENT_S + ANSWER_S + DEADLINE_S)
            assert told["state"] in {"done", "interrupted"}, told
            assert told["state"] == "done" or "nothing has been heard of the service" in told["text"], told
        ended = [second.outcome(app.name, second.order(app.name, order)["id"]) for order in orders]
    assert ended[0]["state"] == "done" or "was put back already" in ended[0]["text"]
    assert ended[1]["state"] == "done"
    app.wait_until_decided()
    assert are_put_back(app, value)
    app.wait_until_through()
    wait_until(partial(is_joined, app, 1), "the corrected record is joined")
    assert joiner.stop() == 0
    app.verify()


def test_many_are_put_back_at_once_as_they_were_and_a_dry_run_says_so_before(app: Application) -> None:
    app.create_topics()
    joiner = app.start()
    future_ms = round(1_000 * time.time()) + 2 * 86_400_000
    things = things_over_all_units(6)
    app.produce([record(thing, "speed", future_ms, 1.0, f"e{thing}") for thing in things])
    app.wait_until_through()
    assert joiner.stop() == 0
    wait_until(lambda: len(read_places(app)) == 6, "there are dead letters of all records")
    places = [*read_places(app), (0, 10**6)]
    assert len(places) == 7
    refused = put_back(app.settings(), places, "ada", dry_run=True)
    assert [one.is_done for one in refused] == [False] * 7
    assert "ahead of its arrival" in refused[0].reason
    assert "no such dead letter" in refused[6].reason
    app.application += '\nmax_future_skew = "3d"'
    would = put_back(app.settings(), places, "ada", dry_run=True)
    assert [one.is_done for one in would] == [True] * 6 + [False]
    topics = app.admin().list_topics(timeout=DEADLINE_S).topics
    assert f"{app.name}.audit" not in topics
    before = read_topic(app.bootstrap, app.topic("data"), PARTITIONS)
    assert put_back(app.settings(), places, "ada") == would

    app.wait_until_decided()
    after = read_topic(app.bootstrap, app.topic("data"), PARTITIONS)
    assert sorted(one[:3] for one in after) == sorted(2 * [one[:3] for one in before])


@needs_browser
def test_a_person_reads_a_dead_letter_by_keyboard_and_on_a_phone(
    app: Application, control: ControlService, browser: Browser
) -> None:
    app.create_topics()
    joiner = app.start()
    visitor = Visitor(browser, control, viewport={"width": 1280, "height": 800})
    page = visitor.page
    visitor.log_in()
    page.get_by_role("link", name="Dead letters").click()
    expect(page.get_by_text("There are no dead letters.")).to_be_visible(timeout=SEEN_MS)
    # They appear on the open page.
    hostile = json.dumps({"thing": THING, "quantity": HOSTILE, "phenomenonTime": HOSTILE, "result": 1, "id": "h"})
    app.produce([*(bad(f"b{number}") for number in range(60)), Entry(THING, hostile.encode())])
    expect(page.get_by_text("61 of 61 dead letters")).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_role("button", name="Show the dead letter")).to_have_count(50, timeout=SEEN_MS)
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_role("button", name="Show the dead letter")).to_have_count(11, timeout=SEEN_MS)
    page.get_by_role("button", name="Newest").click()
    page.get_by_label("Reason contains").focus()
    page.keyboard.type("onerror")
    expect(page.get_by_text("1 of 61 dead letters", exact=True)).to_be_visible(timeout=SEEN_MS)
    show = page.get_by_role("button", name="Show the dead letter")
    expect(show).to_have_count(1, timeout=SEEN_MS)
    assert visitor.faults() == []
    visitor.picture("dead-letters")
    show.focus()
    # What changes elsewhere on the page leaves the focus where it is.
    app.produce([bad("late")])
    expect(page.get_by_text("1 of 62 dead letters", exact=True)).to_be_visible(timeout=SEEN_MS)
    expect(show).to_be_focused()
    page.keyboard.press("Enter")
    field = page.get_by_label("Contents")
    expect(field).to_have_value(json.loads(json.dumps(hostile)), timeout=SEEN_MS)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert visitor.faults() == []
    visitor.picture("dead-letter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0, timeout=SEEN_MS)
    assert (visitor.elsewhere, visitor.errors) == ([], [])
    visitor.context.close()
    look_on_a_phone(control, browser)
    assert joiner.stop() == 0


def look_on_a_phone(control: ControlService, browser: Browser) -> None:
    """Open a dead letter as a user who may not read its contents."""
    phone = Visitor(browser, control, viewport={"width": 360, "height": 740}, color_scheme="dark")
    phone.log_in(name="vera")
    phone.page.get_by_role("link", name="Dead letters").click()
    phone.page.get_by_role("button", name="Show the dead letter").first.click(timeout=SEEN_MS)
    role = phone.page.get_by_text("this needs the role operator, and vera is viewer")
    expect(role).to_be_visible(timeout=SEEN_MS)
    expect(phone.page.get_by_label("Contents")).to_be_hidden()
    assert phone.faults() == []
    phone.picture("dead-letter-360")
    phone.page.get_by_role("button", name="Close").click()
    width = phone.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, "the page is wider than the screen"
    phone.picture("dead-letters-360")
    assert (phone.elsewhere, phone.errors) == ([], [])
    phone.context.close()


@needs_browser
def test_an_admin_corrects_a_record_and_puts_it_back(
    app: Application, control: ControlService, browser: Browser
) -> None:
    app.create_topics()
    joiner = app.start()
    app.produce([bad("mended")])
    app.wait_until_through()
    visitor = Visitor(browser, control)
    page = visitor.page
    visitor.log_in(name="ada")
    page.get_by_role("link", name="Dead letters").click()
    page.get_by_role("button", name="Show the dead letter").click(timeout=SEEN_MS)
    dialog = page.get_by_role("dialog", name="A dead letter")
    contents_field = dialog.get_by_label("Contents")
    expect(contents_field).to_have_value(bad("mended").value.decode(), timeout=SEEN_MS)  # type: ignore[union-attr] # has one
    # As it is, it would be rejected again.
    dialog.get_by_role("button", name="Put back").click()
    expect(dialog.get_by_role("alert")).to_contain_text("0 of 1 records were put back", timeout=SEEN_MS)
    corrected = json.dumps(json.loads(bad("mended").value or b"") | {"result": 1.5})
    contents_field.fill(corrected)
    dialog.get_by_role("button", name="Put back").click()
    expect(dialog.get_by_role("alert")).to_contain_text("done: 1 of 1 records were put back", timeout=SEEN_MS)
    visitor.picture("dead-letter-put-back")
    assert visitor.faults() == []
    app.wait_until_through()
    app.wait_until_decided()
    assert are_put_back(app, corrected)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Actions").click()
    rows = page.get_by_role("row").filter(has_text="put back the records of dead letters").filter(has_text="done")
    expect(rows).to_have_count(1, timeout=SEEN_MS)
    assert joiner.stop() == 0
    assert (visitor.elsewhere, visitor.errors) == ([], [])
    visitor.context.close()
