"""Reading from Kafka and writing to it: input ranges, transactions, the state topic, the control topic.

May import `task` for the types of written messages. Ownership of units is not decided here.
Start with `transaction`, the steps of a commit, and `checkpoint_log`, what a claim reads.
"""
