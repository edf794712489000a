"""The first look: small copies of images, read with the question by the first layers of the language model.

R rows (prompts with images), I images of all rows, U different prefixes, P tokens of a prefix, S of a suffix, L = P + S
of both, D width, X width of the ViT, G key heads, d size of a head, h w grid of a small copy, H W that of the image,
N = H * W, M maps: of each layer that reads, one for each head.

A prompt is read in two parts. The prefix, all up to its last image, does not depend on the question: its keys and
values serve every question about these images, and are kept for a while. The suffix is all that a further question
costs. Where the last token of the prompt attends is computed from queries and keys, so any attention kernel will do.
Only the stock model's own modules are run.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling

from arr_coc.config import FirstLook
from arr_coc.qwen import language, vision
from arr_coc.qwen.compact import with_small_images
from arr_coc.qwen.family import is_hybrid, levels_of, read_layers
from arr_coc.qwen.language import Begun, attention_row, keys_of
from arr_coc.qwen.memory import Memory, lasting
from arr_coc.qwen.request import IMAGE, VIDEO, Request
from arr_coc.qwen.vision import Geometry, Grid


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """What came of a first look: lists are of the images of a request, `prefixes` of its rows."""

    looked: list[Tensor]  # [M, N], fp32: where the language model looked, by layer and head
    grids: list[Grid]  # cells of the small copies
    features: list[tuple[Tensor, ...]]  # visual tokens and DeepStack levels of the small copies, [h w, D] each
    prefixes: "list[ReadPrefix | None]"
    glances: list[Tensor]  # [X, H, W], what the ViT saw in them; none where the selector reads no glance

    @property
    def view(self) -> dict[str, list[Tensor]]:
        """Fields of a selector's view, a tensor per image."""
        read = {"glance_BXHW": self.glances} if self.glances else {}
        return {"attended_BN": [one.mean(0) for one in self.looked], "looked_BMN": self.looked, **read}


@dataclass(frozen=True, slots=True)
class FirstLooker:
    """Looks at small copies of images. What belongs to an image or a prefix is remembered for further questions."""

    model: Any  # the stock model
    geometry: Geometry
    settings: FirstLook
    memory: Memory
    pad_id: int
    glances: bool = False  # whether what the ViT saw is wanted beside what it handed on

    @torch.no_grad()
    def look(
        self,
        request: Request,
        images: Sequence[Tensor],
        image_of: Sequence[int] | None = None,
        keys: Sequence[Hashable] | None = None,
    ) -> FirstSeen:
        """Where the language model looks in small copies of the images, for each image of the request.

        `images` are `[3, h, w]` in [0, 1]; `image_of` is the number among them of each image of the request, None where
        these are the same. `keys` are what each image of the request is known by; without, nothing is remembered.
        """
        places = list(range(len(images))) if image_of is None else list(image_of)
        keys = [*places] if keys is None else keys
        layout = request.layout
        grids = [self.settings.grid(grid) for grid in layout.grids[: layout.images]]
        grids += [self.settings.clip_grid(layout.grids[n], len(clip)) for clip in layout.clips for n in clip]
        small, _ = with_small_images(request, grids, self.model.config, self.pad_id)
        positions_3RL, _ = self.model.model.get_rope_index(
            small.input_ids, small.layout.types_BL, small.image_grid_thw, small.video_grid_thw, small.attention_mask
        )
        first = [places.index(number) for number in range(len(images))]
        glimpsed = self.glimpse([grids[n] for n in first], images, [keys[n] for n in first])
        glances = []
        if self.glances:
            sides = zip(glimpsed, ((grids[n], layout.grids[n]) for n in first), strict=True)
            merge = self.geometry.merge
            seen = [vision.glance_maps(one[-1].unsqueeze(0), copy, merge, grid)[0] for one, (copy, grid) in sides]
            glances, glimpsed = [seen[place] for place in places], [levels[:-1] for levels in glimpsed]
        features = [glimpsed[place] for place in places]
        text = self.model.config.text_config
        held = len(self.model.model.language_model.layers)  # of a front end, as many as its images want
        layers = min(held, read_layers(self.settings.layers(text.num_hidden_layers), text))
        prefixes: list[ReadPrefix | None]
        with as_asked(self.model.model.language_model):
            if is_hybrid(text):
                maps = attended_at_once(self.model, small, positions_3RL, features, layers)
                prefixes = [None] * len(small.keeps)
            else:
                maps, prefixes = attended(self.model, small, positions_3RL, features, keys, layers, self.memory)
        found = zip(maps, request.layout.grids, strict=True)
        spread = [spread_over(one.unsqueeze(0), grid)[0].flatten(1) for one, grid in found]
        return FirstSeen(spread, grids, features, prefixes, glances)

    def glimpse(
        self, grids: Sequence[Grid], images: Sequence[Tensor], keys: Sequence[Hashable]
    ) -> list[tuple[Tensor, ...]]:
        """What the ViT makes of small copies of images: visual tokens and DeepStack levels, `[h w, D]` each.

        With `glances`, its last hidden states too, `[P, X]`, at the end.
        """
        kind = "glimpse with its glance" if self.glances else "glimpse"
        names = [lasting((kind, key, grid), [key]) for key, grid in zip(keys, grids, strict=True)]
        found = [self.memory.get(name) for name in names]
        missing = [place for place, held in enumerate(found) if held is None]
        if missing:
            shrunk = [vision.glance_rows(images[n].unsqueeze(0), grids[n], self.geometry)[0] for n in missing]
            side = self.geometry.merge
            thw = torch.tensor([[1, side * grids[n][0], side * grids[n][1]] for n in missing], device=shrunk[0].device)
            seen = vision.encode_dense(self.model, torch.cat(shrunk), thw)
            hidden = seen.last_hidden_state.split(thw.prod(-1).tolist())
            for number, place in enumerate(missing):
                levels = (seen.pooler_output[number], *(level[number] for level in levels_of(seen)))
                levels = (*levels, hidden[number]) if self.glances else levels
                found[place] = levels
                self.memory.put(names[place], levels)
        return [levels for levels in found if levels is not None]


# ---------------------------------------------------------------- reading


@contextmanager
def as_asked(reader: Any) -> Iterator[None]:
    """A language model that learns reads as one that is asked: with checkpointing its layers would keep no keys."""
    if not reader.training:
        yield
        return
    reader.eval()
    try:
        yield
    finally:
        reader.train()


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of one prompt, without padding."""

    ids_S: Tensor
    positions_3S: Tensor


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """The start of a prompt, and what the first layers made of it, as `_read_prefixes` gives it."""

    part: _Part
    states: tuple[Tensor, ...]


def attended(
    model: Any,
    small: Request,
    positions_3RL: Tensor,
    features: Sequence[tuple[Tensor, ...]],
    keys: Sequence[Hashable],
    layers: int,
    memory: Memory,
) -> tuple[list[Tensor], list[ReadPrefix | None]]:
    """Attention of each prompt's last token to the cells of each small copy, `[M, h, w]` fp32, by layer and head.

    Also what was made of the start of each row, None for rows without an image.

    `small` are prompts with small copies in place of the images, `positions_3RL` M-RoPE's t, h, w; `features` the
    visual tokens of each image and its DeepStack levels, `[h w, D]` each; `keys` say which images are the same one: a
    number is a place in this call, all others are remembered. All cells of a map sum to at most 1.
    """
    layout = small.layout
    rows = [_split(small, positions_3RL, row) for row in range(small.input_ids.shape[0])]
    of_row = [layout.in_order(row) for row in range(len(rows))]
    asked = [row for row, images in enumerate(of_row) if images]
    names = {row: (tuple(rows[row][0].ids_S.tolist()), tuple(keys[n] for n in of_row[row]), layers) for row in asked}
    states: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}
    missing: dict[tuple[Any, ...], int] = {}
    for row in asked:
        held = memory.get(lasting(names[row], names[row][1]))
        if held is None:
            missing.setdefault(names[row], row)
        else:
            states[names[row]] = held
    if missing:
        made = _read_prefixes(
            model,
            [rows[row][0] for row in missing.values()],
            [[features[image] for image in of_row[row]] for row in missing.values()],
            layers,
        )
        for name, held in zip(missing, made, strict=True):
            states[name] = held
            memory.put(lasting(name, name[1]), held)
    attended_RMP = _read_suffixes(model, [rows[row][1] for row in asked], [states[names[row]] for row in asked], layers)
    found: dict[int, Tensor] = {}
    for row, attended_MP in zip(asked, attended_RMP, strict=True):
        prefix = rows[row][0].ids_S
        grids = [layout.grids[image] for image in of_row[row]]
        seen = attended_MP[:, : prefix.shape[0]][:, _shows(prefix, model.config)]
        cells = seen.split([height * width for height, width in grids], dim=1)
        found |= {image: one.unflatten(1, grid) for image, one, grid in zip(of_row[row], cells, grids, strict=True)}
    starts = [ReadPrefix(rows[row][0], states[names[row]]) if images else None for row, images in enumerate(of_row)]
    return [found[image] for image in range(len(layout.sample_of))], starts


def _shows(ids: Tensor, config: Any) -> Tensor:
    """Which tokens stand for a cell of an image or a clip."""
    return (ids == config.image_token_id) | (ids == config.video_token_id)


def attended_at_once(
    model: Any, small: Request, positions_3RL: Tensor, features: Sequence[tuple[Tensor, ...]], layers: int
) -> list[Tensor]:
    """As `attended` for a model with layers that pass a state along: prompts are read whole, and nothing is remembered.

    One map of each image: the mean over those of the first `layers` that attend.
    """
    mask_RL, layout = small.attention_mask.bool(), small.layout
    last_R = (mask_RL * torch.arange(mask_RL.shape[1], device=mask_RL.device)).amax(-1)
    asks_RL = torch.zeros_like(mask_RL).scatter(1, last_R.unsqueeze(1), True)
    tokens = BaseModelOutputWithPooling(pooler_output=tuple(levels[0] for levels in features))
    seen = vision.divided(tokens, layout.images)
    sequence = {"input_ids": small.input_ids, "attention_mask": small.attention_mask, "position_ids": positions_3RL}
    found_RL = language.attended(model, {**sequence, "mm_encoder_outputs": seen}, asks_RL, layers)
    found_N = torch.cat([found_RL[layout.types_BL == kind] for kind in (IMAGE, VIDEO)])
    return [one.view(1, *grid) for one, grid in zip(found_N.split(layout.cells), layout.grids, strict=True)]


def _split(small: Request, positions_3RL: Tensor, row: int) -> tuple[_Part, _Part]:
    """A row without its padding: all up to its last visual token, and the rest."""
    real = small.attention_mask[row].bool()
    ids, positions_3S = small.input_ids[row, real], positions_3RL[:, row, real]
    visual = small.layout.types_BL[row, real].nonzero()
    end = int(visual[-1]) + 1 if visual.numel() else 0
    end = min(end, ids.shape[0] - 1)  # the last token asks, even where it is an image's
    return _Part(ids[:end], positions_3S[:, :end]), _Part(ids[end:], positions_3S[:, end:])


def _padded(parts: Sequence[_Part]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask of real tokens and positions of several pieces, padded on the right."""
    longest = max(part.ids_S.shape[0] for part in parts)
    ids = torch.stack([F.pad(part.ids_S, (0, longest - part.ids_S.shape[0])) for part in parts])
    positions = torch.stack([F.pad(part.positions_3S, (0, longest - part.ids_S.shape[0])) for part in parts], dim=1)
    lengths = torch.tensor([part.ids_S.shape[0] for part in parts], device=ids.device)
    return ids, torch.arange(longest, device=ids.device) < lengths.unsqueeze(1), positions


def _read_prefixes(
    model: Any, parts: Sequence[_Part], features: Sequence[Sequence[tuple[Tensor, ...]]], layers: int
) -> list[tuple[Tensor, ...]]:
    """Keys and values of each prefix, `[G, P, d]`: of all `layers` but the last.

    Then the keys of that one, and what goes into it, `[1, P, D]`.
    """
    decoder = model.model.language_model
    ids_UP, mask_UP, positions_3UP = _padded(parts)
    visual_UP = _shows(ids_UP, model.config) & mask_UP
    levels = [torch.cat(level) for level in zip(*(image for images in features for image in images), strict=True)]
    hidden = decoder.embed_tokens(ids_UP)
    hidden = hidden.masked_scatter(visual_UP.unsqueeze(-1), levels[0].to(hidden.dtype))
    cache = DynamicCache(config=decoder.config)
    mask = create_causal_mask(decoder.config, hidden, mask_UP.long(), cache)
    rotation = decoder.rotary_emb(hidden, positions_3UP)
    for number, layer in enumerate(decoder.layers[: layers - 1]):
        hidden = layer(hidden, attention_mask=mask, past_key_values=cache, position_embeddings=rotation)
        if number + 1 < len(levels):
            hidden = decoder._deepstack_process(hidden, visual_UP, levels[number + 1].to(hidden.dtype))
    states = [state for layer in cache.layers[: layers - 1] for state in (layer.keys, layer.values)]
    states += [keys_of(decoder.layers[layers - 1], hidden, rotation), hidden.unsqueeze(1)]
    return [tuple(state[row, :, : part.ids_S.shape[0]].clone() for state in states) for row, part in enumerate(parts)]


def _read_suffixes(model: Any, parts: Sequence[_Part], states: Sequence[tuple[Tensor, ...]], layers: int) -> Tensor:
    """Attention of each row's last token to the tokens of its prefix, `[R, M, P]` fp32, by layer and head."""
    if not parts:
        return torch.zeros(0, 0, 0)
    decoder = model.model.language_model
    ids_RS, mask_RS, positions_3RS = _padded(parts)
    lengths = [held[-1].shape[1] for held in states]
    longest = max(lengths)
    before = [
        torch.stack([F.pad(state, (0, 0, 0, longest - state.shape[1])) for state in several])
        for several in zip(*(held[:-1] for held in states), strict=True)
    ]
    mask_RP = torch.arange(longest, device=ids_RS.device) < torch.tensor(lengths, device=ids_RS.device).unsqueeze(1)
    mask_RL = torch.cat([mask_RP, mask_RS], dim=1)
    cache = DynamicCache(config=decoder.config)
    for number in range(layers - 1):
        cache.update(before[2 * number], before[2 * number + 1], number)
    hidden = decoder.embed_tokens(ids_RS)
    mask = create_causal_mask(decoder.config, hidden, mask_RL.long(), cache) if layers > 1 else None
    rotation = decoder.rotary_emb(hidden, positions_3RS)
    rows, last_R = torch.arange(len(parts), device=ids_RS.device), mask_RS.sum(-1) - 1
    turn = tuple(table[rows, last_R].unsqueeze(1) for table in rotation)
    found: list[Tensor] = []
    for number, layer in enumerate(decoder.layers[:layers]):
        asks_RD = hidden[rows, last_R]
        if number + 1 < layers:
            hidden = layer(hidden, attention_mask=mask, past_key_values=cache, position_embeddings=rotation)
            keys = cache.layers[number].keys
        else:
            keys = torch.cat([before[-1], keys_of(layer, hidden, rotation)], dim=2)
        found.append(attention_row(layer, asks_RD, turn, keys, mask_RL)[..., :longest])
    return torch.cat(found, dim=1)


def begun_alike(
    prefixes: Sequence[ReadPrefix | None], ids_BM: Tensor, mask_BM: Tensor, positions_3BM: Tensor
) -> tuple[Begun, Tensor] | None:
    """What was read of the start of each row, for longer rows that begin alike; None where that saves nothing.

    Ids, positions and images must be the same. All rows go on from one column: the first where one of them differs.
    Also returns the columns of that start, -1 for padding.
    """
    layers = max([len(one.states) // 2 - 1 for one in prefixes if one is not None], default=0)
    starts = mask_BM.long().argmax(-1).tolist()
    ends = [start + _alike(one, ids_BM[row, start:], positions_3BM[:, row, start:])
            for row, (one, start) in enumerate(zip(prefixes, starts, strict=True))]  # fmt: skip
    end = min(ends)
    if not layers or end <= min(starts):
        return None
    known = next(one for one in prefixes if one is not None)
    rows = []
    for one, start in zip(prefixes, starts, strict=True):
        length = max(0, end - start)  # a row without a prefix is all padding up to there
        states = [state[:, :length] for state in (one or known).states]
        rows.append([F.pad(state, (0, 0, end - length, 0)) for state in states])
    *both, _, hidden = (torch.stack(states) for states in zip(*rows, strict=True))
    mask = mask_BM[:, :end].bool()
    columns = torch.arange(end, device=mask.device).expand_as(mask).masked_fill(~mask, -1)
    return Begun(layers, hidden.squeeze(1), both[::2], both[1::2], mask, None), columns


def _alike(prefix: ReadPrefix | None, ids_S: Tensor, positions_3S: Tensor) -> int:
    """Number of tokens at the start of a row that are those of the prefix, at the same positions."""
    if prefix is None:
        return 0
    length = min(prefix.part.ids_S.shape[0], ids_S.shape[0])
    same = prefix.part.ids_S[:length] == ids_S[:length]
    same &= (prefix.part.positions_3S[:, :length] == positions_3S[:, :length]).all(0)
    return int(same.long().cumprod(0).sum())


def spread_over(looked_BMhw: Tensor, grid: Grid) -> Tensor:
    """Maps over small copies brought to their images' own cells, `[B, M, H, W]`, with the same sum but for borders."""
    small = looked_BMhw.shape[2] * looked_BMhw.shape[3]
    wide = F.interpolate(looked_BMhw, size=grid, mode="bilinear", align_corners=False)
    return wide * (small / (grid[0] * grid[1]))
