"""What is read from Kafka and written to it: input ranges, transactions, the state topic, the control topic.

May import `task` for the forms of what is written. Whether a unit may be served is not decided here.
Begin with `transaction`, the steps of a commit, and `checkpoint_log`, what a claim reads.
"""
