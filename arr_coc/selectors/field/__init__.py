"""Methods of the field, one file a paper, written from their specifications."""
