"""What kept tokens cost and save, measured side by side."""
