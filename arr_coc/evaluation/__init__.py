"""Runs, statistics and reports."""
