"""The catalogue: what is known of each game besides its env, declared in a file of its own.

An env's state comes in, legal moves, experts' moves and positions go out.
"""
