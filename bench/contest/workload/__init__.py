"""The input of all contenders, and its expected results."""
