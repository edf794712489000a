"""Runs on a GPU machine without network."""
