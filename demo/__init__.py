"""``make demo``: the whole pipeline on real servers, from an events file to the database, and the check of it."""
