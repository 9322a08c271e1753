"""The simulator: replays an events file over MQTT in place of real machines, and generates such files.

It stands outside the pipeline: no Kafka, no joins, none of the services' settings. It sends one JSON object per
message, as a machine would, and sends invalid lines too, for the connector to reject.

No module here may share its name with a standard or third-party module, because `python simulator/simulator.py` puts
this folder first on the path.
"""
