"""Checks the bytes of texts in compiled loops. The arguments are the address of the data, and positions after it."""

from __future__ import annotations

from typing import Final

import numpy as np

from broker.wire.compiled import byte_at, compiled

_MULTIBYTE: Final = 0x80
_PLAIN: Final = np.array(
    [chr(byte).isascii() and chr(byte).isprintable() and byte not in b'"\\' for byte in range(256)]
)
"""Which bytes are printable ASCII that needs no escapes in JSON."""


@compiled()
def is_plain(data: int, at: int, stop: int) -> bool:
    """Return whether a text is printable ASCII that needs no escapes in JSON."""
    for place in range(at, stop):  # noqa: SIM110 - compiled
        if not _PLAIN[byte_at(data + place)]:
            return False
    return True


@compiled()
def is_utf8(data: int, at: int, stop: int) -> bool:
    """Return whether a text is UTF-8."""
    while at < stop:
        first = byte_at(data + at)
        at += 1
        if first < _MULTIBYTE:
            continue
        if 0xC2 <= first <= 0xDF:  # noqa: PLR2004 - the ranges of RFC 3629
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= first <= 0xEF:  # noqa: PLR2004 - as above
            more, low, high = 2, 0xA0 if first == 0xE0 else 0x80, 0x9F if first == 0xED else 0xBF  # noqa: PLR2004
        elif 0xF0 <= first <= 0xF4:  # noqa: PLR2004 - as above
            more, low, high = 3, 0x90 if first == 0xF0 else 0x80, 0x8F if first == 0xF4 else 0xBF  # noqa: PLR2004
        else:
            return False
        if stop - at < more or byte_at(data + at) < low or byte_at(data + at) > high:
            return False
        for place in range(at + 1, at + more):
            if byte_at(data + place) < 0x80 or byte_at(data + place) > 0xBF:  # noqa: PLR2004 - as above
                return False
        at += more
    return True
