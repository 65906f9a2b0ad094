"""Supervised training: what is taught before self-play, asked just as play asks it."""
