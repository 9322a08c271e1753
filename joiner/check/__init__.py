"""The checks that `joiner.tester` runs: an oracle, and a comparison of a pipeline's output with the expected output."""
