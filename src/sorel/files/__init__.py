"""Tables, models and checkpoints: written whole or not at all."""
