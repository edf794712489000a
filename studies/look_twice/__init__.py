"""Studies of looking twice."""
