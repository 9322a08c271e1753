"""The formats of MQTT messages: each parser turns bytes into records and refusals, and never raises.

    events.py      the connector's own events          (mqtt.topic)
    numbers.py     plain numbers                       (format = "number")
    senml.py       SenML packs                         (format = "senml")
    sparkplug.py   Sparkplug B                         (format = "sparkplug")
      births.py    what its nodes have announced
      payload.py   its payloads, in Protocol Buffers
    raw.py         messages to forward unchanged       (format = "raw")
    contents.py    what a message contains, and what the parsers share
    messages.py    which parser a topic's messages need

All modules are pure: the caller passes in the clock.
"""
