"""Pictures of what ARR-COC sees and chooses."""

from arr_coc.viewing.overlays import heat_overlay, kept_overlay, side_by_side
from arr_coc.viewing.sheets import question_blind_maps, texture_sheet

__all__ = ["heat_overlay", "kept_overlay", "question_blind_maps", "side_by_side", "texture_sheet"]
