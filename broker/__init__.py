"""Code shared by all services: times, wire formats, topics, shared settings, and the local stack.

This package imports none of the other packages; all of them may import it.
"""
