"""Many questions about images of one grid in one pass, as mini is trained and asked: compiled, in any precision."""
