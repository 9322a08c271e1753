"""Chooses the decoder for the messages of an input topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joiner.runtime.task.decoding.decoder import TopicDecoder
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.mapped import MappedDecoder

if TYPE_CHECKING:
    from joiner.mapping.framing import Schemas
    from joiner.runtime.settings import JoinerSettings


def make_decoder(
    settings: JoinerSettings, topic: str, unit: int, keys: Keys, schemas: Schemas | None = None
) -> TopicDecoder:
    """Return a decoder for the messages of an input topic, for all operators of one unit.

    ``schemas``: knows the schemas of messages that name theirs.
    """
    if settings.mapped_streams(topic):
        return MappedDecoder(settings, topic, unit, keys, schemas)
    kind = TopicDecoder
    if settings.topics.has_rows:
        from joiner.runtime.task.decoding.arrow import ArrowDecoder  # noqa: PLC0415 - pyarrow is an extra

        kind = ArrowDecoder
    return kind(settings, topic, unit, keys)
