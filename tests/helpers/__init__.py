"""What tests share: doubles, builders, small models, screens."""
