"""The join for programs of one's own: whole tables (`join`), or record by record (`RecordJoin`)."""
