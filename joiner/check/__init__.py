"""The checks behind `joiner.tester`: an oracle, and a comparison of a pipeline's outputs with the expected ones."""
