"""Decides which instance owns each unit of a site and which instances keep its state warm.

This package may import `task`, `kafka`, `ownership` and the modules of `runtime`. `member`, `state`, `assign` and
`detector` use neither Kafka nor a clock. Nothing here protects results: a unit's only lock is its transactional id.
Start reading at `state`, then `assign`.
"""
