"""The recorded path, `fast=True`: an own forward over the stock modules' weights, of fixed shapes, recorded.

rules        when the recorded path applies, and how the next token is picked
layout       what the host knows of a request before anything is computed; sizes rounded up to few
choosing     texture, sight, knowing, balancing, attending without a host read
copies       small copies: read first, attended to, and shown before the windows
clips        clips: chosen as the plain path does, seen in groups of about one size
forward      the language model over a static cache; the vision tower is `arr_coc.qwen.tower`
stages       all these as recordings, found by their sizes
recording    CUDA graphs, or the same by running again; the least used go first
runner       all of it in order
"""

from arr_coc.qwen.graphs.runner import FastRunner

__all__ = ["FastRunner"]
