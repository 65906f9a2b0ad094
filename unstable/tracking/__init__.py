"""Tracking: monitoring of a running run in files, W&B and on a dashboard.

Everything that happens comes in and nothing goes back: tracking never steers a run.
"""
