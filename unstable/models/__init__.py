"""Models: base weights, tokenizer and LoRA adapters, as engines and learners both need them.

Names and folders come in; loaded models, weights as bytes or files, and sizes go out. What a model
is used for never enters.
"""
