"""What is about this project and not for its users: figures, ablations, verdicts, the making of mini. Not installed."""
