"""The join as a Python library: `join` joins two whole tables; `RecordJoin` joins records one by one as they arrive."""
