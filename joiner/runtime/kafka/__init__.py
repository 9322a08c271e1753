"""Reading from Kafka and writing to it: input ranges, transactions, the state topic, the control topic.

May import `task` for the types of the messages it writes. Other packages decide who owns a unit.
Start with `transaction`, the steps of a commit, and `checkpoint_log`, which a claim reads.
"""
