"""The field: every method on the same model, the same questions and the same number of tokens."""
