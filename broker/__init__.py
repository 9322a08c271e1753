"""What the services share: times, wire formats, topics, shared settings, and the local stack.

This package imports nothing of the other packages; all of them may import it.
"""
