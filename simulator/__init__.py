"""The simulator: replays an events file over MQTT in place of machines, and generates such files.

It is not part of the pipeline and does not depend on it: no Kafka, no joins, no settings of services. It sends one JSON
object per message, as a machine would. It sends invalid lines too, so that the connector rejects them.

No module here may have the name of a standard or third-party module, because `python simulator/simulator.py` starts
with this folder first on the path.
"""
