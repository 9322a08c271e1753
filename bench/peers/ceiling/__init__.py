"""The most that Kafka's clients can do: exactly-once pass-throughs in C and Java, to compare the joiner with."""
