"""The records of the topics, and reading and writing many of them as columns. Begin with `records`.

No Kafka here: bytes in, bytes out.
"""
