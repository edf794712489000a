"""Settings of the whole suite."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

# The models here are tiny: threads would spend their time waiting for each other.
torch.set_num_threads(1)
