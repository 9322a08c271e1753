"""The kinds of tables that `join` and `align` accept, each implementing the operations that those two need."""
