"""The simulator: replays an events file over MQTT in place of real machines, and generates such files.

It is not part of the pipeline: it does not use Kafka, joins, or the settings of the services. Like a machine, it sends
one JSON object per message. It also sends invalid lines, which the connector must reject.

No module here may have the name of a module in the standard library or in another package, because
`python simulator/simulator.py` puts this folder first on the path.
"""
