"""Tracking: seeing while a run goes on, in files, W&B and on a dashboard.

Whatever happens comes in, nothing goes back: what is tracked never steers.
"""
