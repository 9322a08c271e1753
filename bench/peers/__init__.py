"""The other contenders: scripts as users of other engines would write them, and their environments."""
