"""The two callbacks of `model.fit`."""
