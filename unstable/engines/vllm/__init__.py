"""The vLLM engine: a model with any number of adapters on GPUs, or on vLLM's build for processors.

Its core is a child process that ends with its owner.
"""
