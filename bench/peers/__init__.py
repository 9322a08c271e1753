"""The other contenders: scripts as users of those engines would write them, and their environments."""
