"""Losses, data, checkpoints and the loops that train."""
