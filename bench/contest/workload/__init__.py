"""What every contender of the comparison gets, and what must come out of it."""
