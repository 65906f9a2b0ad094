"""Playing: engines that serve the model, players, and one or many games at a time."""
