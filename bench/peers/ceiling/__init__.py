"""What Kafka's clients can do at most: exactly-once pass-throughs in C and Java, to compare the joiner with."""
