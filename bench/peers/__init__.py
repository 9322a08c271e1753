"""The other contenders: scripts as users of other engines write them, and their environments."""
