"""The kinds of tables that `join` takes, each with the operations that the join needs."""
