"""The expected output: the definition of the join as nested loops, and the comparison of the engine with it.

It imports no other part of the checker, and only the public interface of the engine. Start reading at `oracle`.
"""
