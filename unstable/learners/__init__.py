"""Learners: one owner of the trained weights and their optimizer, on one rank or many.

Batches come in, versions of the policy and metrics go out. `learner.py` is an update on a page, an
algorithm is a file in `algorithms/`. Games, Ray, opponents and run folders never enter.
"""
