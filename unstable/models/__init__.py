"""Models: base weights, tokenizers and LoRA adapters, as engines and learners both need them.

Input is names and folders; output is loaded models, weights as bytes or files, and sizes. The use
of a model is not part of this room.
"""
