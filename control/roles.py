"""What users may do."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """What a user may do. Each role may also do what the roles below it may do."""

    VIEWER = 1
    """See everything except the contents of records."""
    OPERATOR = 2
    """Change where units run and how many processes there are, retry failed units, and see the contents of records."""
    ADMIN = 3
    """Change what is read and written: put records back, write watermarks."""
