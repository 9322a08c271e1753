"""The kinds of tables that `join` and `align` accept, each with an implementation of the operations that they need."""
