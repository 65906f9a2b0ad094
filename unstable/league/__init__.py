"""League: the players, how strong they are, who plays next, evaluations, the guard.

The config, versions and finished games come in; specs of games, ratings and scores go out. Nothing
of what is trained enters: evaluation never touches it.
"""
