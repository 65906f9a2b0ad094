"""The loop: what happens in a run, in what order; `train.py` is the page to read first.

Actors, a learner and the rooms come in as plain objects (`context.py`); a run's folder goes out.
Processes, tensors and games never enter.
"""
