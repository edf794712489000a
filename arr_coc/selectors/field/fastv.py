"""FastV: the first decoder layers see every token, then the tokens that the prompt attends to least are dropped.

B images with one grid, N cells.

The language model runs its first K layers in full, the attention of the last token at layer K is read, and the other
layers go on with the kept tokens (`arr_coc.qwen.language`). K is 2 as in the paper, or more where DeepStack
adds to deeper layers: 3 on Qwen3-VL. New tokens see dropped ones in the first K layers, as in the paper.
"""

from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import View, registered
from arr_coc.selectors.field.base import FieldSelector

AFTER = 2  # decoder layers that see every token, at least


@registered
class FastVSelector(FieldSelector):
    """The k cells with the highest attention of the prompt's last token, mean over heads, softmax over all tokens.

    Several images share a budget by the attention that they receive together.
    """

    name = "fastv"
    pays = "ViT: all; LM: K layers over all tokens, then the kept ones; choosing: one row of attention"
    reason = "the cells that the language model attends to after its first layers"
    reads_tokens = True

    def __init__(self, config: ARRCOCConfig, layer: ARRCOCLayer | None = None, after: int = AFTER) -> None:
        super().__init__(config)
        if after < 1:
            raise ValueError(f"after={after}: expected at least 1, the number of decoder layers that see every token")
        self.after = after

    def full_layers(self, levels: int) -> int:
        return max(self.after, levels)

    def score(self, view: View) -> Tensor:
        assert view.attended_BN is not None
        return view.attended_BN.float()

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        return scores_BN.sum(-1)
