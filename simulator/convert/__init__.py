"""Converts a table (CSV, Parquet or JSON lines) to an events file, which the simulator replays."""
