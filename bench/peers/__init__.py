"""The joiner's peers: the programs that users of other engines would write, and the environments they run in."""
