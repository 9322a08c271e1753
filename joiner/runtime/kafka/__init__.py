"""Reading from Kafka and writing to it: input ranges, transactions, the state topic, the control topic.

May import `task` for the types of what is written. Who may serve a unit is not decided here.
Begin with `transaction`, the steps of a commit, and `checkpoint_log`, what a claim reads.
"""
