"""The input that all contenders get, and the expected results."""
