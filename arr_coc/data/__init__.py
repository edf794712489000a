"""Questions about images, drawn or from files: what training learns from and evaluation asks."""
