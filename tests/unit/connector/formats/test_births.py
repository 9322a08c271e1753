"""Sparkplug B: what is known of nodes, when it ends, and how often they are asked for their births."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire.records import QUANTITIES_MAX
from connector.formats.births import ASK_EVERY_S, NOTED_MAX, WARNINGS_MAX, Announced, Births, Notes, Scope
from connector.formats.contents import Context, Found
from connector.formats.events import Parser, UnusableError
from connector.formats.messages import MessageParser
from connector.formats.payload import decode
from connector.templates import SparkplugSettings
from tests.unit.connector.formats.plant import NOW_NS, TEMPERATURE, Plant, birth, metric, payload, reasons, records


def test_data_before_the_birth_is_refused_and_the_node_is_asked_once_a_minute() -> None:
    plant = Plant()
    data = payload(metric("temperature", datatype=9, float_value=1))
    assert "the birth of the node 'g/n' is not known; the connector asks for it" in plant.reason("g/NDATA/n", data)
    (command,) = plant.messages.take_commands()
    asked = decode(command.payload)
    assert command.topic == "spBv1.0/g/NCMD/n"
    assert [(one.name, one.datatype, one.boolean_value) for one in asked.metrics] == [
        (b"Node Control/Rebirth", 11, True)
    ]
    assert asked.timestamp == NOW_NS // 10**6
    plant.reason("g/DDATA/n/d", data)
    assert plant.asked() == []
    plant.reason("g/NDATA/other", data)
    plant.now_s = ASK_EVERY_S - 1
    plant.reason("g/NDATA/n", data)
    assert plant.asked() == ["spBv1.0/g/NCMD/other"]
    plant.now_s = ASK_EVERY_S
    plant.reason("g/NDATA/n", data)
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]


def test_without_rebirth_no_node_is_asked() -> None:
    plant = Plant(rebirth=False)
    assert "rebirth is false" in plant.reason("g/NDATA/n", payload(TEMPERATURE))
    assert plant.asked() == []


def test_an_unknown_alias_refuses_the_message_because_others_may_have_changed() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    data = payload(metric(alias=1, float_value=1), metric(alias=9, float_value=2), seq=1)
    assert "the alias 9 is in no birth that the connector has received" in plant.reason("g/NDATA/n", data)
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]
    plant.reason("g/NDATA/n", payload(metric(alias=1, float_value=1), seq=2))
    assert plant.messages.gaps == 0


def test_the_birth_of_a_device_must_be_known() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    assert "the birth of the device 'd' is not known" in plant.reason("g/DDATA/n/d", payload(TEMPERATURE, seq=1))
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]


def test_aliases_are_unique_among_a_node_and_its_devices() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    level, valve = (
        metric("level", alias=1, datatype=9, float_value=1),
        metric("valve", alias=2, datatype=9, float_value=4),
    )
    found = plant.parse("g/DBIRTH/n/d", payload(level, valve, seq=1))
    assert [one.quantity for one in records(found)] == ["valve"]
    assert reasons(found) == ["the metric 'level' has the alias 1, which another metric of the node has"]
    data = metric(alias=1, float_value=3)
    assert plant.values("g/NDATA/n", payload(data, seq=2))[0][:2] == ("g/n", "temperature")
    found = plant.parse("g/DDATA/n/d", payload(data, metric(alias=2, float_value=5), seq=3))
    assert [one.quantity for one in records(found)] == ["valve"]
    assert reasons(found) == ["the alias 1 is of a metric that was refused in the birth"]
    assert plant.asked() == []
    # The next birth of the device may use the aliases of its last one.
    assert len(plant.values("g/DBIRTH/n/d", payload(valve, seq=4))) == 1


def test_names_and_aliases_that_occur_twice_in_a_birth_are_refused() -> None:
    plant = Plant()
    same = [metric(name, alias=7, datatype=9, float_value=1) for name in ("a", "b")]
    twice = [metric("c", alias=alias, datatype=9, float_value=1) for alias in (8, 9)]
    found = plant.parse("g/NBIRTH/n", birth(TEMPERATURE, *same, *twice))
    assert [one.quantity for one in records(found)] == ["temperature"]
    (why,) = reasons(found)
    assert why.startswith("4 metrics of the message are invalid; the first error: the metric 'a' has the alias 7")
    for seq, alias in enumerate((7, 8, 9), start=1):
        assert "refused in the birth" in plant.reason("g/NDATA/n", payload(metric(alias=alias, float_value=1), seq=seq))
    assert "several metrics with the name 'c'" in plant.reason("g/NBIRTH/n", birth(*twice))


@pytest.mark.parametrize("name", [None, ""])
def test_a_metric_without_a_name_is_that_of_its_alias(name: str | None) -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(metric("temperature", alias=0, datatype=9)))
    assert plant.values("g/NDATA/n", payload(metric(name, alias=0, float_value=1), seq=1))[0][1] == "temperature"
    without = payload(metric(name, float_value=99), seq=2)
    assert plant.reason("g/NDATA/n", without) == "a metric has neither a name nor an alias"


def test_a_birth_replaces_all_that_was_known_of_the_node() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    plant.parse("g/DBIRTH/n/d", payload(TEMPERATURE, seq=1))
    plant.parse("g/NBIRTH/n", birth(metric("pressure", alias=1, datatype=9)))
    data = metric(alias=1, float_value=3)
    assert plant.values("g/NDATA/n", payload(data, seq=1))[0][1] == "pressure"
    assert "the birth of the device" in plant.reason("g/DDATA/n/d", payload(data, seq=2))


UNUSABLE: Final = [
    b"\xff",
    b"\x00" * (2**18 + 1),
    payload(*[metric("x", alias=1)] * (QUANTITIES_MAX + 1)),
    b"\x22\x12SPBV1.0_COMPRESSED",
]


@pytest.mark.parametrize("unusable", UNUSABLE)
def test_a_birth_that_is_refused_leaves_no_aliases_of_the_one_before(unusable: bytes) -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    plant.parse("g/DBIRTH/n/d", payload(metric("level", alias=2, datatype=9), seq=1))
    level, temperature = metric(alias=2, float_value=3), metric(alias=1, float_value=3)
    plant.reason("g/DBIRTH/n/d", unusable)
    assert "the birth of the device 'd' is not known" in plant.reason("g/DDATA/n/d", payload(level, seq=3))
    assert len(plant.values("g/NDATA/n", payload(temperature, seq=4))) == 1
    plant.reason("g/NBIRTH/n", unusable)
    assert "the birth of the node" in plant.reason("g/NDATA/n", payload(temperature, seq=5))
    assert plant.messages.gaps == 0


def test_a_node_whose_birth_was_refused_is_asked_once_more_and_not_for_ever() -> None:
    plant, data = Plant(), payload(metric(alias=1, float_value=3))
    plant.reason("g/NBIRTH/n", b"\xff")
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]
    (warning,) = plant.messages.take_warnings()
    assert warning.startswith(
        "a birth of 'g/n' was refused, so its data is refused until a birth of it can be used: not a"
    )
    for _ in range(3):
        plant.now_s += 2 * ASK_EVERY_S
        assert plant.reason("g/NDATA/n", data) == "the birth of the node 'g/n' is not known: the last one was refused"
        plant.reason("g/NBIRTH/n", b"\xff")
        assert (plant.asked(), plant.messages.take_warnings()) == ([], [])
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    plant.parse("g/NDATA/n", payload(metric(alias=1, float_value=3), seq=2))
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]


def test_a_metric_that_cannot_be_used_does_not_disable_its_node() -> None:
    plant = Plant()
    found = plant.parse("g/NBIRTH/n", birth(TEMPERATURE, metric("x" * 257, alias=5, datatype=9, float_value=1)))
    assert [one.quantity for one in records(found)] == ["temperature"]
    found = plant.parse("g/NDATA/n", payload(metric(alias=1, float_value=3), metric(alias=5, float_value=4), seq=1))
    assert [one.quantity for one in records(found)] == ["temperature"]
    assert reasons(found) == ["the alias 5 is of a metric that was refused in the birth"]


def test_after_a_gap_aliases_count_only_from_the_next_birth_and_names_continue() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    plant.parse("g/DBIRTH/n/d", payload(metric("level", alias=2, datatype=9), seq=1))
    both = (metric(alias=1, float_value=3), metric("name", datatype=9, float_value=4))
    found = plant.parse("g/NDATA/n", payload(*both, seq=3))
    assert [one.quantity for one in records(found)] == ["name"]
    assert "the alias 1 is not used until the next birth" in reasons(found)[0]
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]
    level = metric(alias=2, float_value=5)
    assert "the alias 2 is not used" in plant.reason("g/DDATA/n/d", payload(level, seq=4))
    # A datatype may have changed as well.
    assert "has no datatype" in plant.reason("g/NDATA/n", payload(metric("temperature", int_value=1), seq=5))
    plant.parse("g/DBIRTH/n/d", payload(metric("valve", alias=2, datatype=9), seq=6))
    assert plant.values("g/DDATA/n/d", payload(level, seq=7))[0][:2] == ("g/n/d", "valve")
    plant.now_s = ASK_EVERY_S
    assert "the alias 1 is not used" in plant.reason("g/NDATA/n", payload(both[0], seq=8))
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    assert plant.values("g/NDATA/n", payload(both[0], seq=1))[0][1] == "temperature"


def test_after_a_lost_connection_aliases_count_only_from_the_next_birth() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    plant.reason("g/NDATA/other", payload())
    plant.messages.lose_connection()
    assert plant.asked() == []
    data = payload(metric(alias=1, float_value=3), seq=7)
    assert "the alias 1 is not used until the next birth" in plant.reason("g/NDATA/n", data)
    plant.reason("g/NDATA/other", payload())
    assert plant.asked() == ["spBv1.0/g/NCMD/n", "spBv1.0/g/NCMD/other"]
    assert plant.messages.gaps == 0


def test_only_the_death_of_the_present_birth_counts() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE, bd_seq=2))
    plant.parse("g/NDEATH/n", birth(bd_seq=1))
    data = payload(metric(alias=1, float_value=3), seq=1)
    assert len(plant.values("g/NDATA/n", data)) == 1
    plant.parse("g/NDEATH/n", birth(bd_seq=2))
    assert "the birth of the node" in plant.reason("g/NDATA/n", data)


def test_the_death_of_a_device_leaves_the_node() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE))
    plant.parse("g/DBIRTH/n/d", payload(TEMPERATURE, seq=1))
    assert plant.parse("g/DDEATH/n/d", payload(seq=2)) == Found()
    assert "the birth of the device" in plant.reason("g/DDATA/n/d", payload(TEMPERATURE, seq=3))
    assert len(plant.values("g/NDATA/n", payload(metric(alias=1, float_value=3), seq=4))) == 1
    assert plant.messages.gaps == 0


def test_a_gap_in_the_sequence_is_counted_and_logged_once_a_minute() -> None:
    plant = Plant()
    plant.parse("g/NBIRTH/n", birth(TEMPERATURE, seq=254))
    data = metric("temperature", datatype=9, float_value=3)
    for seq in (255, 0, 1):
        plant.parse("g/NDATA/n", payload(data, seq=seq))
    assert (plant.messages.gaps, plant.messages.take_warnings(), plant.asked()) == (0, [], [])
    assert len(plant.values("g/NDATA/n", payload(data, seq=3))) == 1
    (warning,) = plant.messages.take_warnings()
    assert "messages of the Sparkplug node 'g/n' are missing: after the sequence number 1 came 3" in warning
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]
    plant.parse("g/NDATA/n", payload(data, seq=7))
    assert (plant.messages.gaps, plant.messages.take_warnings(), plant.asked()) == (2, [], [])
    plant.parse("g/NDATA/n", payload(data, seq=None))
    plant.parse("g/NDATA/n", payload(data, seq=8))
    assert plant.messages.gaps == 2


def scope(metrics: int) -> Scope:
    found = Scope()
    for number in range(metrics):
        found.add(Announced(f"m{number}", 9), number)
    return found


def test_at_the_limit_the_nodes_that_were_seen_longest_ago_are_forgotten() -> None:
    births = Births(known_max=11, node_max=10)
    node = births.add_node("g", "n", scope(3), 1)
    births.add_node("g", "other", scope(2), 1)
    assert len(births) == 9
    assert births.node("g", "n") is node
    births.add_device(node, "d", scope(4))
    assert (len(births), births.node("g", "other")) == (10, None)
    with pytest.raises(UnusableError, match=r"has announced 9 devices and metrics, .* 2 more, but the limit is 10 per"):
        births.add_device(node, "e", scope(1))
    births.drop_device(node, "d")
    births.add_node("g", "new", scope(7), 1)
    assert (len(births), births.node("g", "n")) == (9, None)
    births.drop_node("g", "new")
    births.drop_node("g", "new")
    assert len(births) == 0
    (warning,) = births.warnings
    assert "more than 11 nodes, devices and metrics" in warning


def test_a_hostile_publisher_keeps_no_node_from_its_births() -> None:
    plant = Plant()
    many = [metric(f"{number}", datatype=9) for number in range(9_900)]
    for number in range(12):
        plant.parse(f"evil/NBIRTH/{number}", birth(*many))
    for number in range(2 * NOTED_MAX):
        plant.parse(f"evil/NDATA/{number}", b"")
    plant.asked()
    plant.reason("g/NDATA/n", payload())
    assert plant.asked() == ["spBv1.0/g/NCMD/n"]
    assert len(plant.values("g/NBIRTH/n", birth(TEMPERATURE))) == 1
    assert len(plant.values("g/NDATA/n", payload(metric(alias=1, float_value=3), seq=1))) == 1


def test_notes_are_limited_and_renewed() -> None:
    notes = Notes()
    assert all(notes.is_due(("g", str(number)), 0.0) for number in range(NOTED_MAX + 1))
    assert ("g", "0") not in notes
    assert not notes.is_due(("g", "1"), ASK_EVERY_S - 1)
    assert notes.is_due(("g", "1"), ASK_EVERY_S)
    assert not notes.is_due(("g", "1"), ASK_EVERY_S + 1)


def test_warnings_are_limited() -> None:
    births = Births()
    for number in range(2 * WARNINGS_MAX):
        births.warn((str(number),), "text", 0.0)
    assert len(births.warnings) == WARNINGS_MAX
    births.warn(("0",), "text", ASK_EVERY_S)
    assert len(births.warnings) == WARNINGS_MAX + 1


def test_two_templates_share_what_is_known_of_a_node() -> None:
    settings = [
        SparkplugSettings.model_validate({"format": "sparkplug", "topic": topic})
        for topic in ("spBv1.0/+/DDATA/#", "spBv1.0/#")
    ]
    context = Context("ms", 2**18, lambda: NOW_NS, "run")
    both = MessageParser(settings, Parser("ms", 2**18), context, lambda: 0.0)
    both.parse("spBv1.0/g/NBIRTH/n", birth(), is_retained=False)
    both.parse("spBv1.0/g/DBIRTH/n/d", payload(TEMPERATURE, seq=1), is_retained=False)
    data = payload(metric(alias=1, float_value=3), seq=2)
    assert len(records(both.parse("spBv1.0/g/DDATA/n/d", data, is_retained=False))) == 1
    assert both.gaps == 0
    for kind in ("NDATA/m", "DDATA/m/d"):
        both.parse(f"spBv1.0/g/{kind}", data, is_retained=False)
    assert len(both.take_commands()) == 1


class Sender:
    """A node with a device, whose values are the numbers in the names of their metrics. Some messages are lost."""

    def __init__(self) -> None:
        self.plant = Plant()
        self._known: dict[str, list[tuple[int, int]]] = {}
        self._sequence = self._bd_seq = 0
        self._followed: int | None = None
        self._is_missing = self.is_hidden = False

    def do(self, kind: str, device: str, metrics: list[tuple[int, int]], pick: int, *, is_lost: bool) -> None:
        """Send a message with these metrics, as names and aliases, or only with that to ``pick``."""
        if kind == "reconnect":
            self.plant.messages.lose_connection()
            self._followed, self._is_missing = None, False
            return
        if kind in {"birth", "spoilt birth"}:
            if not device:
                self._bd_seq, self._sequence = self._bd_seq + 1, -1
                self._known.clear()
            self._known[device] = [(name + 10 * bool(device), alias) for name, alias in metrics]
            sent = [metric(str(name), alias=alias, datatype=9, float_value=name) for name, alias in self._known[device]]
            if not device:
                sent.append(metric("bdSeq", datatype=4, long_value=self._bd_seq))
        elif kind == "death":
            self._known.pop(device, None)
            sent = [] if device else [metric("bdSeq", datatype=4, long_value=self._bd_seq)]
        elif not self._known.get(device):
            return
        else:
            name, alias = self._known[device][pick % len(self._known[device])]
            sent = [metric(alias=alias, float_value=name) if kind == "data" else metric(float_value=99)]
        if (kind, device) == ("death", ""):
            self._deliver("NDEATH/n", payload(*sent, seq=None), is_lost=is_lost)
            return
        self._sequence = (self._sequence + 1) % 256
        word = "DATA" if kind in {"data", "nameless"} else kind.rpartition(" ")[2].upper()
        topic = f"D{word}/n/{device}" if device else f"N{word}/n"
        given_payload = b"\xff" if kind == "spoilt birth" else payload(*sent, seq=self._sequence)
        if is_lost:
            self._is_missing = True
        else:
            expected = self._sequence if self._followed is None else (self._followed + 1) % 256
            # The sequence number happens to be the one that follows, as after 256 lost messages.
            self.is_hidden |= self._is_missing and expected == self._sequence
            is_spoilt = kind == "spoilt birth"
            self._followed = expected if is_spoilt and device else self._sequence
            self._is_missing &= is_spoilt and bool(device)
        self._deliver(topic, given_payload, is_lost=is_lost)

    def _deliver(self, topic: str, given_payload: bytes, *, is_lost: bool) -> None:
        if is_lost or self.is_hidden:
            return
        for record in records(self.plant.parse(f"g/{topic}", given_payload)):
            assert record.quantity == str(int(record.result))
            assert record.thing == ("g/n/d" if record.result >= 10 else "g/n")


steps = st.tuples(
    st.sampled_from([*["birth"] * 3, "spoilt birth", "spoilt birth", "death", *["data"] * 8, "nameless", "reconnect"]),
    st.sampled_from(["", "d"]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=2),
    st.integers(0, 1),
    st.sampled_from([*[False] * 4, True]),
)


@settings(max_examples=150)
@given(st.lists(steps, min_size=12, max_size=40))
def test_each_record_has_the_name_that_its_sender_meant(
    given_steps: list[tuple[str, str, list[tuple[int, int]], int, bool]],
) -> None:
    """Unless messages are lost, but their sequence numbers do not show it."""
    sender = Sender()
    for device in ("", "d"):
        sender.do("birth", device, [(1, len(device))], 0, is_lost=False)
    for kind, device, metrics, pick, is_lost in given_steps:
        sender.do(kind, device, metrics, pick, is_lost=is_lost)
