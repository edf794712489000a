"""Asked from files: `arr-coc batch`, here or on a cluster."""
