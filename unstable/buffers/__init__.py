"""Buffers: decouple play, in which games end at any time, from learning, which draws batches.

Take trajectories of finished games; produce batches of whole groups, oldest first. Files, tensors
and advantages never enter.
"""
