"""Peers written in Java: the joins that users of Kafka Streams, Flink and Spark would write by hand.

``common`` is the neighbour rule, which all of them share; each engine has a folder with its program and a script with
its settings.
"""
