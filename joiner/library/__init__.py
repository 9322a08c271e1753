"""The join as a library: `join` for whole tables, `RecordJoin` for single records."""
