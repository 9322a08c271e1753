"""What a mutation is: one broken rule."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

CORE: Final = "joiner/core"
ALIGNMENT: Final = "joiner/alignment"


class Mutation(NamedTuple):
    """A broken rule: its description, the file, the text before and after the change, and the file's package."""

    rule: str
    file: str
    before: str
    after: str
    package: str = CORE

    @property
    def path(self) -> Path:
        """The file, relative to the root."""
        return Path(self.package, self.file)
