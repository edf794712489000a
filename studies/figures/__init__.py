"""Figures and pages of the documentation, made from results and from the code."""
