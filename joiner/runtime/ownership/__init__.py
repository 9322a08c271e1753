"""Manages the ownership of units: claims them, restores their state, and retries after failures.

This package may import `task` and `kafka`. The only lock on a unit is its transactional id. Start reading at `claim`,
then `restore`. `assignment` decides when each unit is claimed, and `dangling` resolves transactions that Kafka has
failed to end, or has ended wrongly.
"""
