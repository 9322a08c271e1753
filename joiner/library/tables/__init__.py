"""The kinds of tables that `join` accepts, each with an implementation of the operations that the join needs."""
