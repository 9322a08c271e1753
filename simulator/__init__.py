"""The simulator: a stand-in for the machines. It replays an events file over MQTT, and generates such files.

It is not part of the pipeline and independent of it: no Kafka, no joins, no settings of other parts. It sends one JSON
object per message, as a machine would. Invalid lines are sent as well, for the connector to reject.

No module in here has the name of a standard or third-party module: `python simulator/simulator.py` puts this folder
first on the path for a moment.
"""
