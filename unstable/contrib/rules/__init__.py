"""Rule bots of TextArena's games, by the entry points `unstable.rules`.

An env and the events that a seat was shown come in, probabilities of actions go out.
"""
