"""One game in front of a person, at the terminal.

The players run in this process, without Ray; the game's record goes into its own folder.
"""
