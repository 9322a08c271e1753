"""Machine faults: a full disk and a wrong clock.

A disk is a small in-memory file system, which only root may mount. libfaketime (Debian package `faketime`) sets the
clock of one process. The monotonic clock stays correct, as it does when the clock of a real machine is set.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Final

_DISK_MB: Final = 300
_BALLAST: Final = "ballast"
_LIBRARIES: Final = "usr/lib/*/faketime/libfaketimeMT.so.1"
_SLEEP: Final = Path(__file__).parent / "set_clock"


def why_no_disk() -> str:
    """Return why no disk can be mounted here, or an empty string if one can."""
    return "" if os.geteuid() == 0 else "only root may mount a small disk"


def why_no_clock() -> str:
    """Return why no clock can be set here, or an empty string if one can."""
    return "" if _library() is not None else "libfaketime is missing: apt-get install faketime"


def mount_disk(folder: Path) -> Path:
    """Mount a small disk at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", str(folder)]
    subprocess.run(command, check=True)
    return folder


def unmount_disk(folder: Path) -> None:
    """Unmount the disk. Its contents are lost."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 - its path varies


def fill_disk(folder: Path) -> None:
    """Fill all free space on the disk."""
    with (folder / _BALLAST).open("wb", buffering=0) as file:
        for size in (1024 * 1024, 4096, 512):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def empty_disk(folder: Path) -> None:
    """Free the space again."""
    (folder / _BALLAST).unlink(missing_ok=True)


def set_clock(file: Path, ahead_s: int) -> None:
    """Set the clock of the processes that follow ``file``. It takes effect within a second."""
    draft = file.with_suffix(".new")
    draft.write_text(f"{ahead_s:+d}\n")
    draft.replace(file)


def clock_variables(file: Path) -> dict[str, str]:
    """Return the environment variables for a process whose clock follows ``file``."""
    return {
        "LD_PRELOAD": str(_library()),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(_SLEEP),
    }


def _library() -> Path | None:
    return next(Path("/").glob(_LIBRARIES), None)
