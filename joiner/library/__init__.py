"""The join as a Python library: `join` joins two whole tables, `RecordJoin` joins records as they arrive one by one."""
