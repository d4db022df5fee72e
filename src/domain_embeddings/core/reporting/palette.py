"""One colour, dash and label per thing, the same in every figure.

Colours are chosen so that people with the common forms of colour blindness can tell them apart, and
a dash or a mark says the same again. Each has a partner for dark pages; static figures carry the
light one and the page swaps it (see ``static.to_svg``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

INK = "#1f2328"
MUTED = "#59636e"
GRID = "#d8dee4"
PAPER = "#fffffe"

# Eight colours that differ for people with and without the common forms of colour blindness (a test
# simulates them): on light pages, on dark pages, and where the page may be either.
SERIES = [
    ("#0072b2", "#56b4e9", "#0072b2"),  # blue
    ("#d55e00", "#f0883e", "#d55e00"),  # orange
    ("#117733", "#5f8d4e", "#50b4a0"),  # green
    ("#882255", "#ff6f91", "#c8003c"),  # wine, rose
    ("#00a5b4", "#7fe0d8", "#f050f0"),  # teal, pink
    ("#a59669", "#f0e442", "#c8a064"),  # sand, yellow
    ("#332288", "#b07cff", "#503cdc"),  # indigo, violet
    ("#661100", "#8a5a9e", "#8c3c64"),  # brown, mauve
]
CATEGORIES = [light for light, _, _ in SERIES]
MODEL_COLOURS = {"adapted": CATEGORIES[0], "reference": CATEGORIES[1]}
MODEL_NAMES = {"adapted": "adapted", "reference": "untouched"}
TRANSFORM_NAMES = {
    "none": "as is",
    "pca": "after PCA",
    "shared": "after shared axes",
    "contrastive": "after learned axes",
}
PLOTLY_DASHES = {"none": "solid", "pca": "dot"}
STATIC_DASHES = {"none": "-", "pca": ":"}

# Colour and symbol of each precision, so that either is enough to tell them apart.
PRECISIONS = {
    "float32": (CATEGORIES[0], "circle", "o"),
    "int8": (CATEGORIES[2], "diamond", "D"),
    "binary": (CATEGORIES[5], "square", "s"),
}
PLOTLY_SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star"]
STATIC_SYMBOLS = ["o", "s", "D", "^", "X", "*"]

# Colour and mark of the untouched model and of every method that trains it, wherever several of
# them are in one drawing.
VARIANTS = {
    "untouched": (MODEL_COLOURS["reference"], "o"),
    "plain": (CATEGORIES[5], "s"),
    "simcse": (CATEGORIES[7], "P"),
    "mrl": (CATEGORIES[2], "D"),
    "ese": (CATEGORIES[6], "v"),
    "mic": (CATEGORIES[3], "^"),
    "reze": (CATEGORIES[4], "X"),
    "reze_mic": (MODEL_COLOURS["adapted"], "*"),
}

# Name of the CSS variable, value on light pages, value on dark pages.
CSS = [
    ("ink", INK, "#e6edf3"),
    ("muted", MUTED, "#9aa5b1"),
    ("grid", GRID, "#30363d"),
    ("paper", PAPER, "#14181d"),
    *[
        (name, light, dark)
        for name, (light, dark, _) in zip(
            ("adapted", "reference", *(f"cat{k}" for k in range(3, 9))), SERIES, strict=True
        )
    ],
]


def model_name(model: str) -> str:
    """Name a model for the reader."""
    return MODEL_NAMES.get(model, model)


def transform_name(transform: str) -> str:
    """Name a transform for the reader."""
    return TRANSFORM_NAMES.get(transform, f"after {transform}")


def line_name(model: str, transform: str) -> str:
    """Name a line of the quality plot, for example ``adapted, after PCA``."""
    return f"{model_name(model)}, {transform_name(transform)}"


def category(index: int) -> str:
    """Colour of the k-th source; colours come round again after eight, with another symbol."""
    return CATEGORIES[index % len(CATEGORIES)]


def category_on_any_page(index: int) -> str:
    """Colour of the k-th source in a figure that is shown on light and on dark pages as it is."""
    return SERIES[index % len(SERIES)][2]


def symbol(index: int, symbols: list[str]) -> str:
    """Symbol of the k-th source: changes with every source and again with every round."""
    return symbols[(index + index // len(CATEGORIES)) % len(symbols)]


def variant_styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Give settings that are drawn together a colour and a mark each.

    Args:
        names: Names of settings; a training method has its own colour, ``untouched (of x)`` that
            of the untouched model.

    Returns:
        Colour and mark by name; what is no method takes what the methods among them leave over.
    """
    named = {name: VARIANTS.get(name.partition(" (")[0]) for name in dict.fromkeys(names)}
    taken = set(named.values())
    free = [style for style in VARIANTS.values() if style not in taken] or list(VARIANTS.values())
    others = itertools.cycle(free)
    return {name: style or next(others) for name, style in named.items()}


def css_variable(colour: str) -> str:
    """Name the CSS variable that stands for a colour in a page."""
    return next((name for name, light, _ in CSS if light == colour), "ink")
