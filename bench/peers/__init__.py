"""The other contenders: scripts as users of the other engines would write them, and their environments."""
