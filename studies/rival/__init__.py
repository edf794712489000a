"""The rival: a trained scorer on the output of the ViT, to be compared with."""
