"""The fonts of the wide world: their names here, their files, and where these are found.

All are free and packaged by Debian. A pack (`collect.py`) holds them cut to the letters that are drawn. Without a pack
the fonts of the installed packages are used; without those, the fonts of `arr_coc_scenes` alone.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

from arr_coc_scenes.masks import FURTHER_FILES, TRAIN_FONTS
from studies.wide import held_out

PACK = "ARR_COC_WIDE"  # environment variable: the folder of the pack

TEXT_FILES: dict[str, str] = {
    # Sans.
    "liberation-sans": "LiberationSans-Regular.ttf",
    "bold-liberation-sans": "LiberationSans-Bold.ttf",
    "lato": "Lato-Regular.ttf",
    "black-lato": "Lato-Black.ttf",
    "roboto": "Roboto-Regular.ttf",
    "bold-roboto": "Roboto-Bold.ttf",
    "open-sans": "OpenSans-Regular.ttf",
    "cantarell": "Cantarell-Regular.otf",
    "bold-carlito": "Carlito-Bold.ttf",
    "cabin": "Cabin-Regular.otf",
    "b612": "B612-Regular.otf",
    "gothic": "URWGothic-Demi.otf",
    "gillius": "GilliusADF-Regular.otf",
    "karla": "Karla-Medium.otf",
    "andika": "Andika-Regular.ttf",
    "biolinum": "LinBiolinum_R.otf",
    "quicksand": "Quicksand-Medium.ttf",
    "comfortaa": "Comfortaa-Bold.ttf",
    "jura": "Jura-SemiBold.otf",
    "play": "Play-Bold.otf",
    "averia": "AveriaSansGWF-Regular.ttf",
    "radis": "RadisSans-medium.otf",
    # Serif.
    "liberation-serif": "LiberationSerif-Regular.ttf",
    "bold-liberation-serif": "LiberationSerif-Bold.ttf",
    "italic-liberation-serif": "LiberationSerif-Italic.ttf",
    "caladea": "Caladea-Regular.ttf",
    "garamond": "EBGaramond12-Regular.otf",
    "vollkorn": "Vollkorn-Regular.ttf",
    "libertine": "LinLibertine_RB.otf",
    "bookman": "URWBookman-Demi.otf",
    "century": "C059-Roman.otf",
    "palladio": "P052-Bold.otf",
    "charis": "CharisSIL-Regular.ttf",
    # Mono.
    "liberation-mono": "LiberationMono-Regular.ttf",
    "courier-prime": "Courier Prime Bold.otf",
    "hack": "Hack-Regular.ttf",
    "jetbrains": "JetBrainsMono-Medium.ttf",
    "inconsolata": "Inconsolata.otf",
    "anonymous": "Anonymous Pro B.ttf",
    # Condensed.
    "liberation-narrow": "LiberationSansNarrow-Bold.ttf",
    "nimbus-narrow": "NimbusSansNarrow-Regular.otf",
    "roboto-condensed": "RobotoCondensed-Bold.ttf",
    "open-sans-condensed": "OpenSans-CondBold.ttf",
    "universalis-condensed": "UniversalisADFStd-BoldCond.otf",
    "kaffeesatz": "YanoneKaffeesatz-Bold.otf",
    "dosis": "Dosis-SemiBold.otf",
    # Hand-like and display.
    "comic": "ComicNeue-Bold.otf",
    "humor": "Humor-Sans.ttf",
    "tomson": "TomsonTalks.ttf",
    "lobster": "lobster.otf",
    "rufscript": "Rufscript010.ttf",
    "dancing": "DancingScript-Bold.otf",
}
ICON_FILES: dict[str, str] = {
    "symbola": "Symbola_hint.ttf",
    "noto-2": "NotoSansSymbols2-Regular.ttf",
    "noto-1": "NotoSansSymbols-Regular.ttf",
    "freeserif": "FreeSerif.ttf",
    "unifont": "unifont.otf",
    "material": "materialdesignicons-webfont.ttf",
    "awesome": "fontawesome-webfont.ttf",
    "fork": "forkawesome-webfont.ttf",
    "entypo": "entypo.ttf",
}
# The Debian packages that hold all of these.
PACKAGES = (
    *("fonts-liberation", "fonts-lato", "fonts-roboto-unhinted", "fonts-open-sans", "fonts-cantarell", "fonts-cabin"),
    *("fonts-crosextra-carlito", "fonts-crosextra-caladea", "fonts-b612", "fonts-urw-base35", "fonts-adf-gillius"),
    *("fonts-adf-universalis", "fonts-karla", "fonts-sil-andika", "fonts-sil-charis", "fonts-linuxlibertine"),
    *("fonts-quicksand", "fonts-comfortaa", "fonts-jura", "fonts-play", "fonts-averia-sans-gwf", "fonts-radisnoir"),
    *("fonts-ebgaramond", "fonts-vollkorn", "fonts-courier-prime", "fonts-hack", "fonts-jetbrains-mono", "fonts-dosis"),
    *("fonts-inconsolata", "fonts-anonymous-pro", "fonts-yanone-kaffeesatz", "fonts-comic-neue", "fonts-humor-sans"),
    *("fonts-tomsontalks", "fonts-lobster", "fonts-rufscript", "fonts-dancingscript", "fonts-symbola"),
    *("fonts-noto-core", "fonts-freefont-ttf", "unifont", "fonts-materialdesignicons-webfont", "fonts-font-awesome"),
    *("fonts-fork-awesome", "fonts-entypo"),
)
# Thin strokes: never under this many pixels, or nobody can read them.
LEAST_PX = {
    "garamond": 16,
    "dosis": 16,
    "lobster": 20,
    "rufscript": 20,
    "dancing": 24,
    "kaffeesatz": 18,
    "comfortaa": 16,
}
LEAST_PX |= {"tomson": 18, "humor": 18, "italic-liberation-serif": 16, "jura": 16, "quicksand": 16}


@cache
def installed() -> dict[str, Path]:
    """Font files by their base name, as fontconfig knows them; {} where it is not installed."""
    try:
        listed = subprocess.run(["fc-list", "--format", "%{file}\\n"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {Path(line).name: Path(line) for line in listed.stdout.splitlines()}


def find_file(file: str) -> Path | None:
    """The font file of that base name: from the pack if one is named, else as installed; None if it is nowhere."""
    if pack := os.environ.get(PACK):
        path = Path(pack) / "fonts" / file
        return path if path.is_file() else None
    return installed().get(file)


@cache
def known() -> frozenset[str]:
    """Names of the text and icon fonts that were found; `arr_coc_scenes` can load them from now on."""
    for name, file in (TEXT_FILES | ICON_FILES).items():
        if path := find_file(file):
            FURTHER_FILES[name] = path
    return frozenset(FURTHER_FILES)


@cache
def text_fonts(wanted_held_out: bool) -> tuple[str, ...]:
    """Fonts to write with: the held-out ones, or those of training (never empty: those of the old world stay)."""
    there = tuple(name for name in TEXT_FILES if name in known())
    found = held_out.choices(there, held_out.FONTS, wanted_held_out)
    if wanted_held_out and not found:
        raise ValueError(f"no held-out font is installed: set {PACK} to a pack made by studies.wide.collect")
    return found if wanted_held_out else (*found, *TRAIN_FONTS)
