"""A parser of Sparkplug B with a clock, and payloads for it."""

from __future__ import annotations

from typing import Any, Final

from broker.wire.records import Record
from connector.formats.contents import Context, Found
from connector.formats.events import Parser
from connector.formats.messages import MessageParser
from connector.formats.payload import Metric, Payload
from connector.templates import SparkplugSettings

NOW_NS: Final = 1_700_000_100_123_456_789
AT: Final = 1_700_000_000_000


class Plant:
    """A parser of Sparkplug B, and a clock for its requests."""

    def __init__(self, **template: Any) -> None:
        settings = SparkplugSettings.model_validate({"format": "sparkplug", **template})
        self.now_s = 0.0
        context = Context("ms", 2**18, lambda: NOW_NS, "run")
        self.messages = MessageParser([settings], Parser("ms", 2**18), context, lambda: self.now_s)

    def parse(self, topic: str, payload: bytes, *, is_retained: bool = False) -> Found:
        return self.messages.parse(f"spBv1.0/{topic}", payload, is_retained=is_retained)

    def values(self, topic: str, payload: bytes) -> list[tuple[str, str, Any, float]]:
        """Return what is in the records of a message, of which nothing is refused."""
        found = self.parse(topic, payload)
        assert [refusal.reason for part in found.parts for refusal in part.refusals] == []
        return [(one.thing, one.quantity, one.phenomenonTime, one.result) for one in records(found)]

    def reason(self, topic: str, payload: bytes) -> str:
        """Return why a message is refused. It has no records."""
        found = self.parse(topic, payload)
        assert records(found) == []
        (refusal,) = [refusal for part in found.parts for refusal in part.refusals]
        return refusal.reason

    def asked(self) -> list[str]:
        """Return the topics of the commands since the last call."""
        return [command.topic for command in self.messages.take_commands()]


def records(found: Found) -> list[Record]:
    return [record for part in found.parts for record in part.records]


def reasons(found: Found) -> list[str]:
    return [refusal.reason for part in found.parts for refusal in part.refusals]


def payload(*metrics: Any, seq: int | None = 0, timestamp: int | None = AT) -> bytes:
    given = {name: value for name, value in (("seq", seq), ("timestamp", timestamp)) if value is not None}
    encoded: bytes = Payload(metrics=metrics, **given).SerializeToString()
    return encoded


def metric(name: str | None = None, **fields: Any) -> Any:
    return Metric(**({"name": name.encode()} if name is not None else {}), **fields)


def birth(*metrics: Any, bd_seq: int = 1, seq: int = 0) -> bytes:
    return payload(metric("bdSeq", datatype=4, long_value=bd_seq), *metrics, seq=seq)


TEMPERATURE: Final = metric("temperature", alias=1, datatype=9, float_value=20.5, timestamp=AT)
