"""The oracle: it is told which cells hold the answer. No honest method can know better where to look."""

from torch import Tensor

from arr_coc.attending import coverage
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import Selector, View, register
from arr_coc.selectors.field.base import FieldSelector, count

UNTOLD = 1e-3  # what a cell without evidence claims of a shared budget, where one with evidence claims 1


class OracleSelector(FieldSelector):
    """Every cell that holds evidence, then cells in the even order. Evidence that does not fit is thinned out evenly.

    Several images share a budget by their evidence.
    """

    name = "oracle"
    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: nothing"
    reason = "the cells that hold the answer, filled up evenly"
    reads_evidence = True

    def score(self, view: View) -> Tensor:
        assert view.evidence_BHW is not None
        even_HW = coverage(*view.grid, view.evidence_BHW.device)
        return (even_HW + 2 * view.evidence_BHW.float()).view(count(view))

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        assert view.evidence_BHW is not None
        return view.evidence_BHW.float().flatten(1).clamp(min=UNTOLD).sum(-1)


@register("oracle")
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return OracleSelector(config)
