"""Moves units from one site to another while data flows.

This package may import `task`, `kafka` and `ownership`. `protocol` and `order` are state machines that use neither
Kafka nor a clock. Start reading at `protocol`; `coordinator` drives these state machines, and `handover` implements the
runner's side of a move.
"""
