"""The records of the topics, and their columnar encoding. Begin with `records`.

No Kafka here: bytes in, bytes out.
"""
