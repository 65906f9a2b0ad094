"""Models: base weights, tokenizer and LoRA adapters, as actors and learner ranks both need them."""
