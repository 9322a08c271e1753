"""The control service: shows operators what an application is doing, over HTTP.

It owns nothing. It reads an application's topics like any other consumer, so nothing stops if it dies, and several can
run side by side. Start reading at `facts.watcher` (what is known), `access.guard` (who may ask) and `app`.
"""
