"""The note beside each committed offset of a copied topic. It says for which topics and which key the offset is valid.

An offset alone does not say that the originals before it are in the repartition topic: either topic may have been
deleted and recreated, or the key may have been another one.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

_KEY_BYTES_MAX: Final = 2_000
"""Kafka limits a note to 4,096 bytes by default (``offset.metadata.max.bytes``)."""

_BEGINNING: Final = 100
"""How many characters of a longer key are noted."""


class Progress(msgspec.Struct, frozen=True):
    """What has been copied from a partition.

    ``source`` and ``target``: the ids of the copied topic and of the repartition topic. ``key``: the ``key`` of the
    streams. ``start``: the offset at which copying began.
    """

    source: str
    target: str
    key: str
    start: int


def shown_key(key: str) -> str:
    """Return a key's path as it is noted: one that is too long with a hash of its rest."""
    if len(msgspec.json.encode(key)) <= _KEY_BYTES_MAX:
        return key
    return f"{key[:_BEGINNING]}… (SHA-256 {hashlib.sha256(key.encode()).hexdigest()})"


def encode_progress(progress: Progress) -> str:
    """Return a note."""
    return msgspec.json.encode(progress).decode()


_notes: Final = msgspec.json.Decoder(Progress)


def decode_progress(note: str | None) -> Progress | None:
    """Return what a note says, or None if there is none or another program has written it."""
    try:
        return _notes.decode(note or "")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
