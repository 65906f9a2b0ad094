"""Players: who plays at a seat, a file for each kind, all asked the same way.

An observation and a seed come in, an answer goes out. Other seats' reasoning never enters.
"""
