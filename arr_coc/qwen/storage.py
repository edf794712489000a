"""The adapter on disk: JSON, safetensors, and a model card. Nothing that could run code is ever opened."""

import contextlib
import json
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from arr_coc import __version__
from arr_coc.config import CONFIG_FILE, ARRCOCConfig
from arr_coc.files import whole_file
from arr_coc.layer import ARRCOCLayer

WEIGHTS_FILE = "arr_coc.safetensors"
CARD_FILE = "README.md"
STOCK_CONFIG = "config.json"
MODEL_TYPE = "arr_coc"  # of an adapter without its base, for transformers' Auto classes
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
MOST_HEADER = 10_000_000  # bytes; names and shapes of the 36,000 tensors of the largest Qwen3-VL take 5 million
FLOATS = ("F64", "F32", "F16", "BF16")

Shape = tuple[int, ...]


def has_adapter(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


def has_base(folder: Path) -> bool:
    """Whether a folder claims to hold a whole model; what cannot be read is for whoever loads it to tell."""
    if not (folder / STOCK_CONFIG).is_file():
        return False
    try:
        said = json.loads((folder / STOCK_CONFIG).read_text())
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(said, dict) or said.get("model_type") != MODEL_TYPE


def save_whole(folder: Path, parts: Sequence[Callable[[Path], Any]]) -> None:
    """What all `parts` write is moved to `folder` once all of it is there; other weights of a model are taken away."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as name:
        place = Path(name)
        for write in parts:
            write(place)
        made = {path.relative_to(place) for path in place.rglob("*") if path.is_file()}
        for file in made:
            (folder / file).parent.mkdir(exist_ok=True)
            (place / file).replace(folder / file)
    for old in folder.glob("model*.safetensors*"):
        if made and old.relative_to(folder) not in made:
            old.unlink()


def save_adapter(folder: Path, config: ARRCOCConfig, layer: ARRCOCLayer) -> None:
    """Write config, weights and card. The weights come last, so a folder without them is visibly unfinished."""
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in layer.state_dict().items()}
    names = (WEIGHTS_FILE, CARD_FILE, CONFIG_FILE, *(() if has_base(folder) else (STOCK_CONFIG,)))
    with contextlib.ExitStack() as places:
        weights, card, settings, *stub = [places.enter_context(whole_file(folder / name)) for name in names]
        for place in stub:
            place.write_text(json.dumps({"architectures": ["ARRCOCQwen"], "model_type": MODEL_TYPE}, indent=2) + "\n")
        settings.write_text(config.as_json())
        card.write_text(model_card(config, layer))
        save_file(tensors, str(weights), metadata={"format": "pt", "library": f"arr-coc {__version__}"})
        weights.chmod(settings.stat().st_mode)  # safetensors leaves what nobody else can read


def load_adapter(folder: Path) -> tuple[ARRCOCConfig, ARRCOCLayer]:
    """Read an adapter. Anything that does not fit is refused with the file's and the key's name."""
    config = ARRCOCConfig.load(folder)
    try:
        with torch.device("meta"):  # whatever sizes the config claims, nothing is made of them yet
            expected = ARRCOCLayer.from_config(config).state_dict()
    except RuntimeError as error:
        raise ValueError(f"{CONFIG_FILE}: no layer has such sizes ({error}); save the adapter again") from None
    weights = _read_weights(folder, {name: tuple(tensor.shape) for name, tensor in expected.items()})
    layer = ARRCOCLayer.from_config(config)
    layer.load_state_dict(weights)
    return config, layer


def read_shapes(path: Path) -> dict[str, Shape]:
    """Shapes of the tensors of a safetensors file, by name, from its header; one that is not whole is refused."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise ValueError("a folder, a pipe or a device")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MOST_HEADER:
                raise ValueError(f"its header claims {length:,} bytes, at most {MOST_HEADER:,} are read")
            header = json.loads(file.read(length), object_pairs_hook=_unrepeated)
        with safe_open(str(path), framework="pt"):  # offsets without holes, to the end of the file
            pass
        header.pop("__metadata__", None)
        found = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"{error}".replace(str(path), path.name)
        raise ValueError(f"{path.name}: not a whole safetensors file ({why}); copy it again") from None
    for name, (dtype, _) in found.items():
        if dtype not in FLOATS:
            raise ValueError(f"{path.name}: key {name!r} is of type {dtype}, weights are {', '.join(FLOATS)}")
    return {name: shape for name, (_, shape) in found.items()}


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; two keys of one name would let two readers see two files."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice in its header")
    return made


def read_tensors(path: Path, expected: Mapping[str, Shape], prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file, if they are those expected, and finite; `prefix` is taken off their names.

    Names and shapes are checked before anything is read.
    """
    shapes = {name.removeprefix(prefix): shape for name, shape in read_shapes(path).items()}
    for name in sorted(set(shapes) ^ set(expected)):
        what = "unknown to" if name in shapes else "missing for"
        raise ValueError(f"{path.name}: key {name!r} is {what} this model; load the model and version that it is for")
    for name, shape in shapes.items():
        if shape != expected[name]:
            has = f"has shape {shape}, the model has {expected[name]}"
            raise ValueError(f"{path.name}: key {name!r} {has}; load the model and version that it is for")
    with safe_open(str(path), framework="pt") as file:
        found = {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    check_finite(path.name, found)
    return found


def check_finite(file: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that hold a NaN or an infinity: each makes the sum one, whatever the others are."""
    sums = {name: tensor.detach().sum(dtype=torch.float32) for name, tensor in tensors.items()}
    if not sums or torch.isfinite(torch.stack([one.cpu() for one in sums.values()])).all():
        return
    name = next(name for name, one in sums.items() if not torch.isfinite(one))
    raise ValueError(f"{file}: key {name!r} holds values that are not finite; copy it again, or take an earlier one")


def _read_weights(folder: Path, expected: Mapping[str, Shape]) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickles = [file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))]
        hint = f"; {pickles[0]} is not opened, because a pickle can run code" if pickles else ""
        raise ValueError(f"{WEIGHTS_FILE}: not in the adapter's folder{hint}; save the adapter again")
    return read_tensors(path, expected)


def is_as_saved(model: nn.Module, folder: Path) -> bool:
    """Whether a stock model's weights are those of the files in a folder, in the dtype that it has now.

    Reads up to the first that differs: about a second for each gigabyte where none does.
    """
    mine, found = model.state_dict(), set()
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                found.add(name)
                if name not in mine or not torch.equal(mine[name].cpu(), file.get_tensor(name).to(mine[name].dtype)):
                    return False
    return bool(found) and set(mine) - found <= set(getattr(model, "all_tied_weights_keys", ()))


def model_card(config: ARRCOCConfig, layer: ARRCOCLayer) -> str:
    """The adapter's README, with the front matter that model hubs read."""
    count = sum(parameter.numel() for parameter in layer.parameters())
    here = Path(config.base_model).is_absolute()  # a folder of this machine is nobody else's business
    config = replace(config, base_model=Path(config.base_model).name) if here else config
    named = config.base_model and not here
    base = f"base_model: {config.base_model}\nbase_model_relation: adapter\n" if named else ""
    state = "trained" if config.trained else "untrained: the model looks twice instead"
    return (
        (files("arr_coc") / "assets" / "adapter-card.md")
        .read_text()
        .format(
            base=base,
            state=state,
            base_model=config.base_model or "not recorded",
            count=f"{count:,}",
            megabytes=f"{4 * count / 2**20:.1f}",
            channels=config.texture_channels,
            least=config.min_tokens,
            most=config.max_tokens,
            encoding=config.encoding,
            version=__version__,
            figures=config.figures or "not measured",
            settings=json.dumps({name: getattr(config, name) for name in config.__slots__}, indent=2),
        )
    )
