"""The peers: what users would write with other tools, each a program of its own."""
