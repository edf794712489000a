"""Many questions about images of one grid in one pass, for training and evaluation."""
