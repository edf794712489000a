"""Looking twice: what it finds, what it costs, and when to look again."""
