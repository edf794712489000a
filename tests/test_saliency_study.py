"""What maps are judged by, and what the network's training leaves behind."""

import json

import pytest
import tiny
import torch
from torch import nn

from arr_coc.evaluation.field.evidence import truth_cells
from arr_coc.texture.saliency import WIDTHS
from studies.saliency import choice
from studies.saliency.gaze import METRICS, PLACES, Gaze, auc_judd, blurred, counted, judged, nss, on_places
from studies.saliency.pages import DENSE, SIZES, dense_page, whole_page
from studies.saliency.train import folded, learner, loss_of, other_light
from studies.speed.textures import Launches
from studies.text_channel import covered


def test_a_page_says_where_it_is_written_and_the_rest_is_paper():
    for kind, (width, height) in {**SIZES, **DENSE}.items():
        whole = whole_page if kind in SIZES else dense_page
        page = whole(3, kind)
        assert bool(page.headings) == (kind in DENSE)
        boxes = [*page.titles, *page.headings, *page.lines, *page.figures]
        assert page.pixels.shape == (height, width, 3)
        assert all(0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height for x0, y0, x1, y1 in boxes)
        rest = page.pixels.copy()
        rest[:57] = rest[-1, -1]  # a web page has a bar on top
        for x0, y0, x1, y1 in boxes:
            rest[y0 - 3 : y1 + 6, x0 - 3 : x1 + 3] = rest[-1, -1]
        assert (rest == rest[-1, -1]).all()
        assert (whole(3, kind).pixels == page.pixels).all()
        assert (whole(4, kind).pixels != page.pixels).any()


def test_pages_and_photographs_are_asked_nothing_and_have_a_truth(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "PAGES", 2)
    (tmp_path / "photos").mkdir()
    tiny.picture(96, 64).save(tmp_path / "photos" / "a.png")
    looked = {"train": {"a.png": [[[0.1, 0.2]], [[0.9, 0.9], [0.5, 0.5]]]}}
    (tmp_path / "fixations.json").write_text(json.dumps(looked))
    several = [
        *choice.photographs(tmp_path, "train"),
        *choice.drawn_pages("train"),
        *choice.whole_pages(0, False),
        *choice.whole_pages(0, True),
        *choice.dense_pages(0, "titles"),
        *choice.dense_pages(0, "headings"),
    ]
    assert len(truth_cells(several[0].queries[0], (4, 6))) == 3
    for one in several:
        (query,) = one.queries
        assert query.text == ""
        assert one.read().shape == (*one.size[::-1], 3)
        assert 0 < len(truth_cells(query, (24, 24))) < 24 * 24
    assert len(several) == 11


def looked_at(x, y, count=30):
    generator = torch.Generator().manual_seed(0)
    return counted((torch.tensor([x, y]) + 0.04 * torch.randn(count, 2, generator=generator)).clamp(0, 1))


def test_a_map_that_knows_the_gaze_is_best_and_one_that_knows_nothing_is_even():
    counts = looked_at(0.3, 0.6).unsqueeze(0)
    gaze = Gaze(["one"], [], counts, blurred(counts))
    assert gaze.density_Bhw.sum() == pytest.approx(1, abs=1e-5)
    right, wrong, even = blurred(counts), blurred(counts).flip(-1), torch.ones(1, *PLACES)
    found = {name: dict(zip(METRICS, judged(maps, gaze)[0].tolist(), strict=True)) for name, maps in
             {"right": right, "wrong": wrong, "even": even}.items()}  # fmt: skip
    assert found["right"]["nss"] > 3 > 0 > found["wrong"]["nss"]
    assert found["right"]["auc_judd"] > 0.95 > 0.5 > found["wrong"]["auc_judd"]
    assert found["right"]["cc"] == pytest.approx(1, abs=1e-4)
    assert found["right"]["kl"] == pytest.approx(0, abs=1e-4)
    assert found["even"]["auc_judd"] == pytest.approx(0.5)  # ties count half
    assert found["even"]["nss"] == pytest.approx(0, abs=1e-4)
    assert found["even"]["kl"] > 1


def test_neither_nss_nor_the_area_depends_on_the_scale_of_a_map():
    counts, values = looked_at(0.5, 0.5), torch.rand(*PLACES, generator=torch.Generator().manual_seed(1))
    assert nss(values, counts) == pytest.approx(nss(3 * values + 2, counts), abs=1e-4)
    assert auc_judd(values, counts) == pytest.approx(auc_judd(values**3, counts), abs=1e-6)


def test_folding_changes_nothing_but_the_form():
    torch.manual_seed(0)
    network = learner(0.25)
    textures = torch.rand(4, 9, 24, 32)
    counts = torch.stack([looked_at(0.2 * number, 0.5) for number in range(1, 5)])
    loss = loss_of(network(textures), counts, blurred(counts))
    loss.backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in network.parameters() if one.ndim == 4)
    with torch.no_grad():
        before = network.eval()(textures)
        after = folded(network)(textures)
    assert torch.allclose(before, after, atol=1e-4)
    assert [type(one) for one in network.norms] == [nn.Identity] * len(WIDTHS)


def test_another_light_is_still_a_canvas():
    pooled = torch.rand(6, 5, 8, 8)
    pooled[:, 4] = pooled[:, 3] ** 2 + 0.01
    light = other_light(pooled)
    assert light[:, :4].min() >= 0
    assert light[:, :4].max() <= 1 + 1e-5
    assert (light[:, 4] >= light[:, 3] ** 2 - 1e-6).all()


def test_maps_of_any_grid_are_judged_on_the_same_places():
    assert on_places(torch.rand(2, 1, 12, 16)).shape == (2, *PLACES)


def test_views_launch_nothing():
    x = torch.rand(4, 4)
    with Launches() as launches:
        (x.view(16)[:8].unsqueeze(0) + 1).exp()
    assert launches.count == 2


def test_boxes_cover_shares_of_cells():
    share = covered([(0, 0, 32, 16), (40, 32, 48, 64)], 64, 64)
    assert share.tolist() == [[0.5, 0.0], [0.0, 0.25]]
