"""Tables of the field, from results/field.json and results/equal-tokens.json."""

from statistics import mean
from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

COLUMNS = ((512, 0.25), (512, 0.1), (512, 0.06), (1024, 256), (1024, 64))  # px a side, KEPT
NAMES = {
    "arr_coc": "ARR-COC",
    "rival": "trained scorer on the ViT's output",
    "look_twice": "looking twice",
    "training_free": "words against tokens, untrained",
    "fastv": "FastV",
    "visionzip": "VisionZip",
    "divprune": "DivPrune",
    "cdpruner": "CDPruner",
    "mmtok": "MMTok",
    "downsampling": "a smaller image",
    "pooling": "pooling",
    "even_grid": "even grid",
    "random": "random, three seeds",
    "oracle": "oracle: the evidence is given",
}


def name_of(selector: str) -> str:
    name, _, settings = selector.partition(":")
    return NAMES.get(name, name) + (", with MMR" if "diversity" in settings else "")


def _is_control(row: dict[str, Any]) -> bool:
    """Chance after the ViT, and a grid beside chance, are controls of a control: their place is the report."""
    name = row["selector"].partition(":")[0]
    return name == "even_grid" or (name == "random" and row["encoding"] == "dense")


def place_of(selector: str, encoding: str) -> str:
    """Where a method chooses."""
    if selector.startswith("downsampling"):
        return "not at all"
    if selector.startswith("fastv"):
        return "in the LM"
    return {"sparse": "before the ViT", "dense": "after it"}[encoding]


def field_table(results: dict[str, Any]) -> str:
    """Accuracy of every method at some budgets, and its time at one; random as the mean of its seeds."""
    found: dict[tuple[str, str], dict[tuple[int, Any], list[float]]] = {}
    times: dict[tuple[str, str], list[float]] = {}
    counts: dict[int, int] = {}
    ours: dict[int, int] = {}
    for row in results["rows"]:
        if row["dataset"] != "scenes" or row["selector"] == "plain" or _is_control(row):
            continue
        key = (name_of(row["selector"]) + ("*" if row["trained"] else ""), place_of(row["selector"], row["encoding"]))
        found.setdefault(key, {}).setdefault((row["side"], row["keep"]), []).append(row["accuracy"])
        (ours if row["selector"] == "arr_coc" else counts)[row["side"]] = row["n"]
        if (row["side"], row["keep"]) == COLUMNS[-1]:
            times.setdefault(key, []).append(row["time_ms"]["first_token"])
    order = {label: place for place, label in enumerate(NAMES.values())}

    def place(key: tuple[str, str]) -> tuple[int, str, bool]:
        return order.get(key[0].rstrip("*").removesuffix(", with MMR"), len(order)), key[0], key[1] == "after it"

    lines = [
        (*key, *(_share(found[key].get(column)) for column in COLUMNS), f"{mean(times[key]):,.0f} ms")
        for key in sorted(found, key=place)
    ]
    kept = [f"{side} px, {keep:.0%}" if isinstance(keep, float) else f"{side} px, {keep}" for side, keep in COLUMNS]
    plain = {row["side"]: row for row in results["rows"] if row["selector"] == "plain"}
    whole = " and ".join(f"{plain[side]['accuracy']:.1%} at {side} px" for side in sorted(plain))
    asked = " and ".join(f"{counts[side]:,} questions at {side} px" for side in sorted(counts))
    if ours != counts:
        asked += f" (ARR-COC {' and '.join(f'{ours[side]:,}' for side in sorted(ours))} of these)"
    (device,) = {run["device"] for run in results.get("timed_runs", results["runs"]).values()}
    machine = {"cpu": "two CPU cores", "cuda": "one GPU"}[device]
    return "\n".join(
        [
            *markdown_table(("exact answers of mini", "chosen", *kept, "its first token"), lines),
            "",
            f"With all tokens {whole}, {plain[1024]['time_ms']['first_token']:,.0f} ms. `*` trained on boxes. {asked}; "
            f"times of one question in a batch on {machine}, each method alone.",
        ]
    )


def _share(values: list[float] | None) -> str:
    return "-" if not values else f"{mean(values):.1%}"


def equal_table(results: dict[str, Any]) -> str:
    """What 256 tokens are worth: chosen from 1024 px, against the whole of 512 px."""
    gains = results["gains"]["arr_coc sparse"]

    def points(group: str) -> str:
        low, high = gains[group]["ci95"]
        return f"{100 * gains[group]['mean']:+.0f} points ({100 * low:+.0f} to {100 * high:+.0f})"

    rows = {(row["selector"], row["encoding"]): row for row in results["rows"]}
    small, ours = rows["downsampling", "dense"], rows["arr_coc", "sparse"]
    return (
        f"The same 256 tokens spent two ways on hard scenes of 1024 px ({gains['overall']['n']:,} questions): the "
        f"whole image at 512 px answers {small['accuracy']:.1%}, 256 of 1,024 tokens chosen {ours['accuracy']:.1%}: "
        f"{points('overall')}; on small text {points('small text')}."
    )
