"""The kinds of tables that `join` and `align` accept, and the operations they need on each kind."""
