"""Image files that users hand in: what their headers say, and their pixels."""
