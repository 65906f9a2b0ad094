"""Loop: the steps of a run and their order; `train.py` is the file to read first.

Takes actors, a learner and the other rooms' objects (`context.py`); produces a run's folder.
Processes, tensors and games never enter.
"""
