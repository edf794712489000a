"""Tables of mini-stock, the control that never sees a cell missing, and of the field's known effects on both models."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

FALLS = {"seen": "all tokens", "sparse25": "25 % with the evidence, sparse"}
PLACES = {
    "fastv": "FastV",
    "look_twice": "looking twice",
    "cdpruner": "CDPruner",
    "visionzip": "VisionZip",
    "oracle": "oracle",
}
CHOICES = {
    "random": "random",
    "downsampling": "a smaller image",
    "pooling": "pooling",
    "training_free": "training-free maps",
    "visionzip": "VisionZip",
    "divprune": "DivPrune",
    "mmtok": "MMTok",
    "cdpruner": "CDPruner",
    "fastv": "FastV",
    "look_twice": "looking twice",
}
KEEPS = ("0.25", "0.1", "0.06")
WAYS = {"all": "all tokens", "dense": "25 %, chosen after the ViT", "sparse": "25 %, chosen before it"}


def stock_runs(results: dict[str, Any]) -> str:
    """What each run took, and what it reached on the validation scenes and, where it was asked, in the wide world."""
    rows = [
        (f"{one['run']}", f"{one['seconds']}", f"`{one['config']}`, seed {one['seed']}", f"{one['steps']:,}",
         f"{one['val']:.1%}", f"{one['wide']:.1%} of {one['wide_n']:,}" if "wide" in one else "-")
        for one in results["runs"]
    ]  # fmt: skip
    return "\n".join(markdown_table(("run", "seconds", "config", "steps", "val at the end", "the wide world"), rows))


def half_runs(results: dict[str, Any]) -> str:
    """How far a model of half the size came, and how many answer tokens were right on the way."""
    heads = (
        "run",
        "seconds",
        "config",
        "steps",
        "answer tokens right, from the start to the end",
        "val",
        "the wide world",
    )
    rows = []
    for one in results["runs"]:
        curve = ", ".join(f"{point['token_accuracy']:.0%}" for point in one["curve"])
        stopped = f" (stopped at {one['stopped_at']:.0%})" if "stopped_at" in one else ""
        reached = ("-", "-")
        if "wide" in one:
            reached = (f"{one['val']:.1%}", f"{one['wide']['accuracy']:.1%} of {one['wide']['n']:,}")
        how = f"`{one['config']}`, seed {one['seed']}"
        rows.append((f"{one['run']}", f"{one['seconds']}{stopped}", how, f"{one['steps']:,}", curve, *reached))
    return "\n".join(markdown_table(heads, rows))


def stock_tables(results: dict[str, Any]) -> str:
    """Exact answers with all tokens and with cells missing, and what that costs each family."""
    splits = results["splits"]
    rows = [("all", *(f"{splits[split]['accuracy']:.1%}" for split in FALLS), f"{splits['seen']['n']:,}")]
    for name, family in splits["seen"]["families"].items():
        shares = (f"{splits[split]['families'][name]['accuracy']:.1%}" for split in FALLS)
        rows.append((name.replace("_", " "), *shares, f"{family['n']:,}"))
    return "\n".join(markdown_table(("the wide world, 512 px", *FALLS.values(), "questions"), rows))


def late_places(results: dict[str, Any]) -> str:
    """Where in the image the kept cells lie."""
    rows = [
        (label, model, *(f"{share:.1%}" for share in found["places"][name]))
        for name, label in PLACES.items()
        for model, found in results.items()
        if name in found["places"]
    ]
    return "\n".join(markdown_table(("25 % kept by", "of", "top quarter", "second", "third", "bottom quarter"), rows))


def simple_choices(results: dict[str, Any]) -> str:
    """Simple choices beside designed ones: all questions, and counting."""
    found = results["mini"]["accuracy"]
    rows = [
        (label, *(f"{found[name][keep][number]:.1%}" for number in (0, 1) for keep in KEEPS))
        for name, label in CHOICES.items()
    ]
    shares = [f"{100 * float(keep):g} %" for keep in KEEPS]
    return "\n".join(markdown_table(("mini, dense", *shares, *(f"{share}, counting" for share in shares)), rows))


def compact_positions(results: dict[str, Any]) -> str:
    """What it costs to number the kept cells without gaps, family by family."""
    rows = []
    for model, found in results.items():
        for keep, families in found["positions"]["original"].items():
            told = {
                name: [found["positions"][policy][keep][name][0] for policy in ("original", "compact")]
                for name in ("all", "spatial", "read_sign", "lookup", "colour")
            }
            falls = (f"{100 * before:.1f} to {100 * after:.1f}" for before, after in told.values())
            rows.append((f"{model}, {100 * float(keep):g} %", *falls, f"{families['all'][1]:,}"))
    heads = ("kept", "all questions", "left of, above", "read sign", "look up", "colour", "questions")
    return "\n".join(markdown_table(heads, rows))


def counting_falls(results: dict[str, Any]) -> str:
    """Counting and the rest with cells missing, in both models."""
    rows = [
        (f"{model}, {label}", *(f"{found['counting'][way][group]:.1%}" for group in ("count", "rest")))
        for model, found in results.items()
        for way, label in WAYS.items()
    ]
    return "\n".join(markdown_table(("looking twice", "counting", "the rest"), rows))
