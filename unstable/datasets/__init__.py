"""Datasets: what is taught before self-play, asked just as play asks it.

Experts, recorded games and files of a person's own come in, examples of prompts and answers go out.
Models, weights and losses never enter.
"""
