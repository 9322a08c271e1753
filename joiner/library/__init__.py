"""The join as a library: whole tables (`join`), or record by record (`RecordJoin`)."""
