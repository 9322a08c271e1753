"""Manages the ownership of units: claims them, restores their state, and retries after failures.

This package may import `task` and `kafka`. The only lock on a unit is its transactional id. Start with `claim`, then
read `restore`. `assignment` decides when to claim each unit, and `dangling` resolves transactions that Kafka failed to
end or ended incorrectly.
"""
