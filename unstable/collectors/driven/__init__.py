"""Games that programs outside play: they come to a port, and each game's seats are URLs there.

A spec and players come in as for any game; a `GameResult` goes out, or what went wrong.
"""
