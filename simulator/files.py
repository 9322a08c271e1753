"""Writes files atomically."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator


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
