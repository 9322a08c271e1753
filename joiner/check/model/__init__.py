"""The expected output: the join defined as nested loops, and a driver that compares the engine with it.

This package imports no other part of the checker, and only the engine's public interface. Start reading at `oracle`.
"""
