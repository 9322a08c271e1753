"""The input given to all contenders, and the results expected from them."""
