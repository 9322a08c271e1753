"""``make demo``: runs the whole pipeline on real servers, from an events file to the database, and verifies it."""
