"""Reads from and writes to Kafka: ranges of the input, transactions, the state topic and the control topic.

This package may import `task` for the types of the messages that it reads and writes. Other packages decide who owns a
unit. Start reading at `transaction`, which implements a commit, and at `checkpoint_log`, which finds the checkpoint for
a claim.
"""
