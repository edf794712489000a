"""The fast path: an own forward over the stock modules' weights, with shapes fixed so that it can be recorded.

buckets      sizes are rounded up to few, so that few recordings serve all requests
layout       what the host knows of a request before anything is computed
seeing       the vision tower over padded sets of windows
speaking     prefill and one step of decoding over a static cache
selecting    texture, sight, knowing, balancing, attending without a host read
recording    recordings of all these: CUDA graphs, or the same by running again; the least used go first
picking      the next token from the logits
rules        when the fast path applies
break_even   from how many visual tokens on choosing pays
runner       all of it in order
"""

from arr_coc.qwen.graphs.runner import FastRunner

__all__ = ["FastRunner"]
