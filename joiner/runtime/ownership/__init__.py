"""Who serves a unit, and how it comes to its state: claims, recovery, and what becomes of a unit that failed.

May import `task` and `kafka`. The transactional id of a unit is its only lock.
Begin with `claim`, then `restore`; `assignment` says which unit is claimed when, `dangling` what Kafka may forget.
"""
