"""The checks behind `joiner.tester`: an oracle, what must have been put out, and comparing the two."""
