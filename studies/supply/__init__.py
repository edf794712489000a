"""What this project is built from: pinned by hash, listed, licensed, audited."""
