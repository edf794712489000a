"""Clips: how well they are answered with few tokens, beside what others do; how steady the choice is; streams."""
