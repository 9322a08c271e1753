"""The expected output: the definition as nested loops, and the engine in memory compared with it.

Imports nothing of the rest of the checker, and only the public interface of the engine. Begin with `oracle`.
"""
