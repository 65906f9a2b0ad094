"""League: players, ratings, opponent sampling, evaluations and the collapse guard.

The config, versions and finished games come in; game specs, ratings and scores go out. Nothing that
is trained enters: an evaluation never changes it.
"""
