"""Datasets: examples to train on before self-play, with prompts as in play.

Input is experts, recorded games and users' own files; output is examples of prompts and answers.
Models, weights and losses are not part of this room.
"""
