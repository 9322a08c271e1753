"""Writes files atomically, and reads lines of limited length."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, AnyStr, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator


class LongLineError(OSError):
    """Raised if a line is too long. The message names the file and the line."""


def short_lines(file: IO[AnyStr], length_max: int) -> Iterator[AnyStr]:
    """Yield the lines of a file with their ends, which count as well.

    Raises LongLineError if a line is longer than `length_max` (bytes or characters), without reading all of it.
    """
    number = 0
    while line := file.readline(length_max + 1):
        number += 1
        if len(line) > length_max:
            message = f"{file.name}, line {number}: it is longer than {length_max:,} characters"
            raise LongLineError(message)
        yield line


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` at the end, unless there was an exception. Raises OSError.

    If `path` is a link, the file that it points to is replaced. An existing file's permissions are kept.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        message = f"{path} is not a regular file"
        raise OSError(message)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        # mkstemp makes it private; this is an ordinary file.
        Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
