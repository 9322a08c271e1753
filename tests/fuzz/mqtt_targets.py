"""The parsers of MQTT messages in other formats than events, for `tests.fuzz.targets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.wire.records import encode
from connector.formats.contents import Context
from connector.formats.events import Parser, dead_letter
from connector.formats.messages import MessageParser
from connector.formats.payload import Metric, Payload
from connector.settings import ConnectorSettings
from tests.fuzz.result_targets import assert_clear

if TYPE_CHECKING:
    from tests.fuzz.mutation import Mutator

AT: Final = 1_700_000_000_000
GROWTH_MAX: Final = 100
ALLOWANCE_BYTES: Final = 2048
BYTES_MAX: Final = 256 * 1024

_SETTINGS: Final = ConnectorSettings.model_validate(
    {
        "topic": [
            {"format": "number", "topic": "number/{thing}/{quantity}"},
            {"format": "senml", "topic": "senml/#"},
            {"format": "sparkplug"},
            {"format": "raw", "topic": "raw/{thing}", "kafka_topic": "raw", "key": "{thing}"},
        ]
    }
)
_PACK: Final = [
    {"bn": "urn:dev:ow:1:", "bt": AT / 1000, "bv": 1, "n": "temperature", "u": "Cel", "v": 21.5},
    {"n": "humidity", "t": -1, "v": 48},
    {"n": "on", "vb": True},
    {"n": "name", "vs": "a"},
]
_TOPICS: Final = ("NBIRTH/n", "NDATA/n", "NDEATH/n", "DBIRTH/n/d", "DDATA/n/d", "DDEATH/n/d")


def mqtt_messages(mutator: Mutator) -> list[tuple[str, bytes]]:
    """Return some topics and payloads."""
    kind = mutator.one_of("number", "senml", "sparkplug", "sparkplug", "raw")
    match kind:
        case "number":
            return [("number/a/b", mutator.data(b"21.5"))]
        case "senml":
            pack: list[Any] = list(_PACK)
            if mutator.is_large():
                pack += [{"n": mutator.one_of("n", "\x01" * 200), "v": 1}] * mutator.one_of(100, 3_000, 12_000)
            return [("senml/a", mutator.json(pack)[: BYTES_MAX + 1])]
        case "raw":
            return [("raw/a", mutator.json(_PACK))]
        case _:
            births = [("spBv1.0/g/NBIRTH/n", _payload(0)), ("spBv1.0/g/DBIRTH/n/d", _payload(1))]
            sent = [(f"spBv1.0/g/{mutator.one_of(*_TOPICS)}", _payload(number + 2)) for number in range(4)]
            return [(topic, mutator.data(one) if mutator.draw.random() < 0.5 else one) for topic, one in births + sent]


def _payload(seq: int) -> bytes:
    metrics = [
        Metric(name=b"bdSeq", datatype=4, long_value=1),
        Metric(name=b"speed", alias=1, datatype=9, float_value=1.5, timestamp=AT),
        Metric(name=b"offset", alias=2, datatype=1, int_value=251),
        Metric(alias=1, float_value=2.5) if seq > 1 else Metric(name=b"text", alias=3, datatype=12, string_value=b"a"),
    ]
    encoded: bytes = Payload(timestamp=AT, seq=seq, metrics=metrics).SerializeToString()
    return encoded


def parse_messages(messages: list[tuple[str, bytes]]) -> str:
    """Check that the output of each message grows only linearly, and that the reasons are clear."""
    context = Context("ms", BYTES_MAX, lambda: AT * 10**6, "run")
    parser = MessageParser(_SETTINGS.topic, Parser("ms", BYTES_MAX), context, lambda: 0.0)
    outcomes = set()
    for topic, payload in messages:
        found = parser.parse(topic, payload, is_retained=False)
        records = [one for part in found.parts for one in part.records]
        refusals = [one for part in found.parts for one in part.refusals]
        size = sum(len(encode(one)) + len(one.thing.encode()) for one in records)
        size += sum(len(encode(dead_letter(refusal, topic))) for refusal in refusals)
        assert size <= GROWTH_MAX * (len(payload) + len(topic)) + ALLOWANCE_BYTES
        assert len(refusals) <= 1
        for refusal in refusals:
            assert_clear(ValueError(refusal.reason))
        assert all(one.value == payload for one in found.copies)
        outcomes |= {name for name, there in (("records", records), ("dead letters", refusals)) if there}
    return " and ".join(sorted(outcomes)) or "nothing"
