"""The input that all contenders are given, and the results that are expected of them."""
