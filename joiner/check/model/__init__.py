"""What must come out: the definition as nested loops, and the engine in memory held against it.

Imports nothing of the rest of the checker, and of the engine its public face alone. Begin with `oracle`.
"""
