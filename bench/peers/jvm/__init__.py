"""Peers written in Java: the joins that users of Kafka Streams, Flink and Spark would write by hand.

``common`` contains the neighbour rule, which all programs share. Each engine has a folder with its Java program, and a
Python script that starts the program with the engine's settings.
"""
