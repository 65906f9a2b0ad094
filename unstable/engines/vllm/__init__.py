"""The vLLM engine: a model with any number of adapters on GPUs, or on vLLM's CPU build.

Its core is a child process that ends with its owner.
"""
