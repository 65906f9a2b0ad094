"""Games for OpenEnv clients: other trainers play against versions of a run and other players.

`protocol.py` is the websocket protocol, `games.py` deals, plays, records and rates the games.
"""
