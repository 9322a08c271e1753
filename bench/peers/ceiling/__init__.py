"""References to compare the joiner with: exactly-once pass-throughs in C and Java, which only copy messages."""
