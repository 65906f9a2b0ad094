"""The steps of the first hour with a card (`bench/gpu_hour.py`), each in a process of its own."""
