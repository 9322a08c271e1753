"""Ownership of units: claiming them, restoring their state, and retrying after failures.

May import `task` and `kafka`. The transactional id of a unit is its only lock.
Start with `claim`, then `restore`; `assignment` decides when each unit is claimed; `dangling` repairs
transactions that Kafka has failed to end.
"""
