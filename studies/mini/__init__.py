"""The making of mini: its data, its training, its card."""
