"""What the shipped selector is worth, and why."""
