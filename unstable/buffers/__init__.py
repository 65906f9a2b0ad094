"""Buffers: games end at any time, and learning takes a batch when it is ready; they meet here.

Trajectories of finished games come in, batches of whole groups go out, oldest first. Files, tensors
and advantages never enter.
"""
