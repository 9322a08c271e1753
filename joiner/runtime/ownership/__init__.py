"""The ownership of units: claims, restoring of state, and retries after failures.

May import `task` and `kafka`. The transactional id of a unit is its only lock.
Start with `claim`, then `restore`; `assignment` decides which unit is claimed when; `dangling` repairs what
Kafka missed.
"""
