"""Settings, validated once. Everything a selection depends on, and nothing about how it is computed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

FORMAT_VERSION = 4  # raised when a saved adapter of the version before can no longer be read as it is
CONFIG_FILE = "arr_coc_config.json"

ENCODINGS = ("auto", "dense", "sparse", "foveated", "weighted")
PERIPHERIES = ("images", "grid")
CONTEXTS = ("auto", "always", "never")
POSITION_POLICIES = ("original", "compact")
POOLINGS = ("mean", "last", "learned", "lm")

SIGHTS = ("textures", "stem", "glance", "look")
SCORERS = ("information", "perspectival", "participatory")
TENSIONS = ("particularize", "explore", "diversify")

FINE = 4  # texture samples per cell and side at the finest level


@dataclass(frozen=True, slots=True)
class Channel:
    """What is known of a texture channel beside how it is measured (`arr_coc/texture`)."""

    group: str
    blind: bool = True
    """Whether scorers that must not know the question, or what the model saw, may read it."""


GROUPS: dict[str, tuple[str, ...]] = {
    "colour": ("red", "green", "blue"),
    "place": ("y", "x", "eccentricity"),
    "edges": ("edges", "inverted_edges"),
    "bands": ("high_pass", "low_pass"),
    "motion": ("motion",),
    "saliency": ("saliency",),
    "distance": ("edge_distance",),
    "clusters": ("cluster_ambiguity", "cluster_share", "cluster_contrast"),
    "text": ("text_likelihood",),
    "semantic": tuple(f"semantic_{number}" for number in range(16)),
    "temporal": ("brighter", "darker", "colour_change", "detail_change"),
    "history": ("looked_last", "looked_before", "looked_always"),
}
"""The whole texture array in its order, by group."""
DETAIL = ("within_cell_variance", "high_pass")  # what a cell holds that is finer than it, in a set of either kind
FOR_PARTICIPATORY = ("semantic", "history")  # they would hand question and glance to the blind scorers
CHANNEL_SETS: dict[int, tuple[str, ...]] = {
    13: (
        *("red", "green", "blue", "y", "x"),
        *("sobel_x", "sobel_y", "sobel_magnitude"),
        *("spectral_residual", "colour_contrast", "local_contrast"),
        *("cluster_ambiguity", "within_cell_variance"),
    ),
    40: tuple(name for names in GROUPS.values() for name in names),
}
"""Named texture channels by the size of the set."""
CHANNELS: dict[str, Channel] = {
    **{name: Channel("default") for name in CHANNEL_SETS[13]},
    **{name: Channel(group, group not in FOR_PARTICIPATORY) for group, names in GROUPS.items() for name in names},
    "text_detected": Channel("text"),  # costly, so in no set: only who names it pays for it
}
"""Every registered channel by its name."""

Keep = float | int | str
"""One dial: a float in (0, 1] is the fraction KEPT, an int of 2 or more a number of tokens, "auto" leaves it open."""

_KEEP_HELP = 'give a fraction kept in (0, 1] such as 0.25, a number of tokens of 2 or more such as 256, or "auto"'


# Share of the decoder layers that a first look reads: 5 of mini's 7. With 4, a model that never saw a cell missing
# loses ten points at 10 % of the tokens; 6 gain nothing.
DEPTH = 0.65


@dataclass(frozen=True, slots=True)
class FirstLook:
    """A small copy: least and most cells, the share of the decoder layers that read it, times its sides are shorter."""

    least: int = 64
    most: int = 256
    depth: float = DEPTH
    shrink: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a small copy of {self.least} to {self.most} cells: expected 1 <= least <= most")
        if not 0 < self.depth <= 1:
            raise ValueError(f"depth={self.depth}: expected the share of the decoder layers that read, in (0, 1]")
        if not self.shrink >= 1:
            raise ValueError(f"shrink={self.shrink}: expected how much shorter the copy's sides are, 1 or more")

    def grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Cells of the small copy of an image of `grid` cells: within the bounds, and never more than the image has."""
        cells = grid[0] * grid[1]
        ratio = min(1.0, (min(max(self.least, cells / self.shrink**2), self.most) / cells) ** 0.5)
        return max(1, round(grid[0] * ratio)), max(1, round(grid[1] * ratio))

    def clip_grid(self, grid: tuple[int, int], moments: int) -> tuple[int, int]:
        """The same for each moment of a clip: a quarter of its side, unless all of it has `most` cells at most.

        A clip has many more cells than an image, and says the same again and again.
        """
        cells = grid[0] * grid[1] * moments
        ratio = min(1.0, (max(self.most, cells / 16) / cells) ** 0.5)
        return max(1, round(grid[0] * ratio)), max(1, round(grid[1] * ratio))

    def layers(self, of: int) -> int:
        """Decoder layers that are read, of so many."""
        return max(1, round(self.depth * of))


GLANCE = FirstLook(shrink=4.0)
"""The small copy that a trained layer is shown: 64 cells up to 1024 px, so a look costs little more than a glance."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How relevance goes over time. All were tuned on drawn clips that no test asks about."""

    decay: float = 0.2  # share of what was relevant a moment ago that is carried on, along the motion; 0: none
    repeated: float = 0.5  # what a cell is worth whose content was kept before, over one that is new; 1: the same
    enough: float = 0.75  # share of all relevance: what holds it is told again before a budget goes to the rest
    motion: float = 1.0  # how much moving against the rest counts as new: 1, by a cell a moment is as good as change
    change: float = 0.04  # mean difference of colours, in [0, 1], from which a cell's content is another
    cut: float = 0.6  # share of the cells that change at once where the scene is another


@dataclass(frozen=True, slots=True)
class ARRCOCConfig:
    """Settings of one ARR-COC layer and of how it sits in its Qwen3-VL."""

    hidden_dim: int
    """Width of the language model's token embeddings."""
    texture_channels: int = 13
    """Which registered set of texture channels is read; a set is named by its size."""
    sight: str = "stem"
    """What the participatory scorer is shown of a small copy of the image; each adds to the one before: textures, stem
    (a small convolution over them), glance (the model's own ViT), look (where its language model looks for the
    question)."""
    sight_channels: int = 32
    """Channels of the stem."""
    glance_channels: int = 96
    """Channels that the ViT's features of a glance are projected to."""
    glance_dim: int = 0
    """Width of the ViT that a glance goes through; 0 without a glance."""
    look_dim: int = 0
    """Attention maps of a look: heads of all decoder layers that read the small copy; 0 without a look."""
    min_tokens: int = 64
    """Least tokens that keep="auto" chooses of 1,024 cells; in proportion below, with the square root above."""
    max_tokens: int = 400
    """Most tokens that keep="auto" chooses, scaled likewise."""
    pooling: str = "mean"
    """How the policy pools the question: mean, last, learned, or lm (a pass of the language model over it)."""
    encoding: str = "auto"
    """auto, dense (ViT encodes all), sparse (only the kept windows), foveated (a small copy of the image, then the kept
    windows), weighted (all kept, scaled by relevance)."""
    periphery: str = "images"
    """Where a small copy stands in the prompt: images (as an image of its own before the others), grid (each of its
    tokens where the cell under it stands in the full grid)."""
    context: str | int = "auto"
    """Whether kept windows also attend to a small copy's patches inside the ViT, sparse and foveated only: auto (where
    a first look was taken, and the windows are no more than the copy's cells, 64 at most), always, never, or up to how
    many windows after a first look."""
    position_policy: str = "original"
    """original keeps each token's (t, h, w); compact numbers what is left 0..n-1."""
    straight_through: bool = False
    """Multiply kept tokens by 1 + s - s.detach(), so that the answer's gradient reaches the scores."""
    trained: bool = False
    """Whether the layer's weights were trained; untrained, the model looks twice instead."""
    voids: bool = False
    """Whether images without structure were among those that its maps learned from: only then is a map that is sure
    believed where detail lies evenly."""
    base_model: str = ""
    """Identifier or absolute folder of the model that the adapter was made for."""
    base_fingerprint: str = ""
    """Of that model's weights, as far as they were at hand; another model is refused."""
    figures: str = ""
    """What the adapter was measured at, in a line for its card."""
    min_pixels: int = 0
    """Least pixels of an image as the model sees it; 0: as its processor says."""
    max_pixels: int = 0
    """Most pixels, likewise. A trained adapter keeps to what it was trained with."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.hidden_dim < 1:
            raise ValueError(f"hidden_dim={self.hidden_dim}: give the width of the language model's embeddings")
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} and max_tokens={self.max_tokens}: expected 1 <= min_tokens <= max_tokens"
            )
        for name, value, allowed in (
            ("encoding", self.encoding, ENCODINGS),
            ("periphery", self.periphery, PERIPHERIES),
            ("position_policy", self.position_policy, POSITION_POLICIES),
            ("pooling", self.pooling, POOLINGS),
            ("sight", self.sight, SIGHTS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
        if self.context not in CONTEXTS and (not isinstance(self.context, int) or self.context < 1):
            raise ValueError(f"context={self.context!r}: expected one of {', '.join(CONTEXTS)}, or a number of windows")
        for name in ("sight_channels", "glance_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        for name, sights, what in (("glance_dim", SIGHTS[2:], "the ViT's width"), ("look_dim", SIGHTS[3:], "heads")):
            if (self.sight in sights) != (getattr(self, name) > 0):
                raise ValueError(
                    f"sight={self.sight!r} and {name}={getattr(self, name)}: {' or '.join(sights)} alone has {what}, "
                    "and it must"
                )

    def as_json(self) -> str:
        """What `CONFIG_FILE` holds."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def save(self, folder: Path) -> None:
        (folder / CONFIG_FILE).write_text(self.as_json())

    @classmethod
    def load(cls, folder: Path) -> "ARRCOCConfig":
        """Read a saved config. Unknown, missing or outdated keys are refused by name, never guessed."""
        path = folder / CONFIG_FILE
        try:
            data = json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path.name}: not readable as JSON ({error}); save the adapter again") from error
        if not isinstance(data, dict):
            raise ValueError(f"{path.name}: expected a JSON object; save the adapter again")
        if data.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{path.name}: key 'format_version' is {data.get('format_version')!r}, this library reads "
                f"{FORMAT_VERSION}; train the adapter anew, or load it with the version of arr-coc that made it"
            )
        known = {field.name: field for field in fields(cls)}
        for key in sorted(set(data) ^ set(known)):
            what = "unknown" if key in data else "missing"
            raise ValueError(f"{path.name}: key {key!r} is {what}; the adapter was saved by another version")
        for key, value in data.items():
            kinds = get_args(known[key].type) or (known[key].type,)
            if type(value) not in kinds:  # exactly: JSON's true is not a number here
                named = " or ".join(getattr(kind, "__name__", "") for kind in kinds)
                raise ValueError(f"{path.name}: key {key!r} holds {value!r}, expected {named}")
        return cls(**data)


def channel_names(channels: int | Sequence[str]) -> tuple[str, ...]:
    """Names of the registered set with that many texture channels; or channels by their names, as they are."""
    if isinstance(channels, Sequence):
        names = (channels,) if isinstance(channels, str) else tuple(channels)
        for name in names:
            if name not in CHANNELS:
                raise ValueError(f"texture channel {name!r}: registered are {', '.join(CHANNELS)}")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"texture channels {', '.join(names) or 'none'}: name at least one, and none twice")
        return names
    if channels not in CHANNEL_SETS:
        sizes = ", ".join(map(str, CHANNEL_SETS))
        raise ValueError(f"texture_channels={channels}: registered sets have {sizes} channels")
    return CHANNEL_SETS[channels]


def blind_names(channels: int | Sequence[str]) -> tuple[str, ...]:
    """Those of a set that scorers may read which must know neither the question nor what the model saw."""
    return tuple(name for name in channel_names(channels) if CHANNELS[name].blind)


def check_keep(keep: Any) -> Keep:
    """Return `keep`, of Python's own numbers, if it is a valid dial, else raise ValueError that says what to give."""
    keep = keep.tolist() if hasattr(keep, "tolist") else keep
    if isinstance(keep, str):
        right = keep == "auto"
    elif isinstance(keep, float):
        right = 0.0 < keep <= 1.0
    else:
        right = isinstance(keep, int) and keep >= 2
        if keep == 1 and type(keep) is int:
            raise ValueError("keep=1 could mean all tokens or one token: give 1.0 for all, or 2 or more for a number")
    if right:
        return keep
    told = keep if isinstance(keep, (int, float)) else repr(keep)
    kind = "" if isinstance(keep, (int, float, str)) else f" is a {type(keep).__name__}"
    raise ValueError(f"keep={told}{kind}: {_KEEP_HELP}")


def check_keeps(keep: Any, samples: int) -> list[Keep]:
    """One dial per sample: a single one is repeated, a sequence must have one for each."""
    keep = keep.tolist() if hasattr(keep, "tolist") else keep
    if isinstance(keep, Sequence) and not isinstance(keep, str):
        if len(keep) != samples:
            raise ValueError(f"keep has {len(keep)} entries for a batch of {samples}: give one, or one per sample")
        return [check_keep(one) for one in keep]
    return [check_keep(keep)] * samples


def tokens_to_keep(keep: Keep, cells: int) -> int | None:
    """The number of tokens a checked dial stands for on `cells` cells, or None for "auto"."""
    if isinstance(keep, str):
        return None
    if isinstance(keep, float):
        return min(cells, max(1, round(keep * cells)))
    return min(cells, keep)


GENERATION: dict[str, tuple[float, float]] = {
    **{"max_new_tokens": (1, 131_072), "min_new_tokens": (0, 131_072), "max_length": (1, 1_000_000)},
    **{"num_beams": (1, 32), "num_return_sequences": (1, 32), "top_k": (0, 1_000_000)},
    **{"temperature": (0, 100), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1), "repetition_penalty": (0, 100)},
}
"""Settings of generate that cost time or memory, or make scores that are no numbers: least and most."""


def check_generation(given: Mapping[str, Any]) -> None:
    """Refuse what nobody means, before anything is done about it; `given` are keywords of generate."""
    config = given.get("generation_config")
    for name, (least, most) in GENERATION.items():
        value = given.get(name, getattr(config, name, None))
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and least <= value <= most):
            raise ValueError(f"{name}={value}: give {least} to {most:,}, or leave it out")


def settings_of(spec: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a selector that is written as NAME or NAME:KEY=VALUE,...: numbers become numbers."""
    name, _, rest = spec.partition(":")
    settings: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"selector {spec!r}: write settings as NAME:KEY=VALUE,KEY=VALUE")
        settings[key] = _value(value)
    return name, settings


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
