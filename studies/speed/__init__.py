"""Speed of what ships, and whether the recorded path answers as the plain one does."""
