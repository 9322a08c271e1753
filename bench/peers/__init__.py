"""Contenders that are not the joiner: scripts as users of other engines write them, and where these run."""
