"""Buffers: where play's clock and learning's clock meet.

Trajectories of finished games come in, batches of whole groups go out, oldest first. Files, tensors
and advantages never enter.
"""
