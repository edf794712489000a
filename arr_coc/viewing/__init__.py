"""Pictures of what ARR-COC sees and chooses: Pillow RGB images, on paper of their own, readable without colour vision.

`kept_overlay`, `heat_overlay`, `evidence_overlay` and `homunculus` are exactly as large as the image; all others have
margins and text, and hold the image at 640 px at most.
"""

from arr_coc.viewing.choices import difference, questions_row
from arr_coc.viewing.heatmaps import heatmap, scorer_panels
from arr_coc.viewing.latency import latency_bars, stage_times
from arr_coc.viewing.overlays import evidence_overlay, heat_overlay, kept_overlay, side_by_side
from arr_coc.viewing.saving import before_after, slider_html
from arr_coc.viewing.sheets import question_blind_maps, texture_sheet
from arr_coc.viewing.tokens import token_rows
from arr_coc.viewing.warping import homunculus
