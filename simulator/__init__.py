"""The simulator: stands in for the machines. It replays an events file over MQTT and generates such files.

It is not part of the pipeline and knows nothing of it: no Kafka, no joins, no settings of other parts. What
it sends is one JSON object a message, as a machine would send it; whatever is wrong with a line is for the
connector to judge.

No module in here has the name of a standard or third-party module: `python simulator/simulator.py` puts this
folder first on the path for a moment.
"""
