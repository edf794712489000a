"""Tuning: what looking twice is worth on one model and one machine, and the settings that suit it."""
