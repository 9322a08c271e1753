"""The checks of `joiner.tester`: an oracle, and the comparison of a pipeline's outputs with the expected outputs."""
