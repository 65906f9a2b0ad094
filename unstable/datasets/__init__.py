"""Datasets: what is trained on before self-play, with prompts as play makes them.

Experts, recorded games and files of a person's own come in, examples of prompts and answers go out.
Models, weights and losses never enter.
"""
