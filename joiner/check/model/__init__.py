"""Computes the expected output with nested loops, and compares the engine's output with it.

This package imports no other part of the checker, and only the engine's public interface. Start reading at `oracle`.
"""
