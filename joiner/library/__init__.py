"""The join as a Python library.

`join` joins two whole tables, `align` adds values from other tables to each row of a table, and `RecordJoin` joins
records one by one as they arrive.
"""
