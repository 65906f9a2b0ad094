"""The steps of the first hour with a GPU (`bench/gpu_hour.py`), each in a separate process."""
