"""Games that external programs play: they connect to a port, where each game's seats are URLs.

A spec and players come in as for any game; a `GameResult` or an error goes out.
"""
