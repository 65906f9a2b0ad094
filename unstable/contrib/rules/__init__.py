"""Rule bots for TextArena's games, by the entry points `unstable.rules`.

Each is a function from an env and a seat's events to the probabilities of actions.
"""
