"""The wide world of mini: scenes whose drawing, ground, letters, pose and capture all vary; several images, and clips.

    wide = make_wide(7, "train", (512, 512))
    wide.pixels                                    # uint8 [512, 512, 3]
    wide.scene.questions[0].text, wide.scene.questions[0].evidence

The questions, their families and answers are those of `arr_coc_scenes`: the same askers read the same drafts. What a
scene looks like is chosen per scene as a `Look`; what training never sees is listed in `held_out.py`.
"""
