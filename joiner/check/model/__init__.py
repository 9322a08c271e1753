"""Computes the expected output with nested loops, and compares the engine's output with it.

This package imports no other part of the checker, and uses the engine only through its public interface. Start with
`oracle`.
"""
