"""Pictures of what ARR-COC sees and chooses."""

from arr_coc.viewing.sheets import question_blind_maps, texture_sheet

__all__ = ["question_blind_maps", "texture_sheet"]
