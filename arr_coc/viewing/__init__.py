"""Pictures of what ARR-COC sees and chooses: Pillow RGB images, on paper of their own, readable without colour vision.

`kept_overlay`, `heat_overlay`, `evidence_overlay` and `homunculus` are exactly as large as the image; all others have
margins and text, and hold the image at 640 px, or at most 1,600. `answer_card` is the whole picture of an answer;
`headed` puts question, answer and tokens above any other.
"""

from arr_coc.viewing.cards import answer_card, choice_legend, difference, headed, kept_page, questions_row, tokens_told
from arr_coc.viewing.heatmaps import heatmap, question_blind_maps, scorer_panels, texture_sheet
from arr_coc.viewing.latency import latency_bars, stage_times
from arr_coc.viewing.overlays import choice_overlay, evidence_overlay, heat_overlay, kept_overlay, side_by_side
from arr_coc.viewing.saving import before_after, slider_html, slider_page
from arr_coc.viewing.tokens import token_rows
from arr_coc.viewing.warping import homunculus
