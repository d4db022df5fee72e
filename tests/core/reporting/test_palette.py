"""Colours stay apart for people with and without the common forms of colour blindness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from domain_embeddings.core.reporting import palette

# Machado, Oliveira and Fernandes (2009), severity 1; they act on linear RGB.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
# Of CIE 1976 colour differences: 2.3 is just noticeable, 10 is seen at a glance.
APART = 15.0


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: str) -> np.ndarray:
    seen = np.clip(VISION[vision] @ linear(colour), 0, 1)
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ seen / WHITE, 1e-9))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(colour: str, page: str) -> float:
    lighter, darker = sorted((float(TO_XYZ[1] @ linear(c)) for c in (colour, page)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("column", [0, 1, 2], ids=["light", "dark", "either"])
def test_every_two_colours_of_the_series_can_be_told_apart(vision, column):
    colours = [colours[column] for colours in palette.SERIES]
    for one, other in itertools.combinations(colours, 2):
        assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > APART, (one, other)


def test_the_simulation_sees_what_the_colour_blind_do_not():
    """Red and green of one lightness: far apart for most, close for some."""
    red, green = "#c05040", "#7a7a20"
    normal, blind = (
        np.linalg.norm(lab(red, vision) - lab(green, vision))
        for vision in ("normal", "deuteranopia")
    )
    assert normal > 50
    assert blind < APART


@pytest.mark.parametrize(("column", "page"), [(0, "#ffffff"), (1, "#14181d")])
def test_lines_and_text_stand_out_from_the_page(column, page):
    assert min(contrast(colours[column], page) for colours in palette.SERIES) > 2.8
    assert min(contrast(colours[2], page) for colours in palette.SERIES) > 2.3
    texts = [entry[column + 1] for entry in palette.CSS if entry[0] in ("ink", "muted")]
    assert min(contrast(text, page) for text in texts) > 4.5


def test_every_colour_has_one_variable_and_methods_keep_theirs():
    assert len({light for _, light, _ in palette.CSS}) == len(palette.CSS)
    colours = [colour for colour, _ in palette.VARIANTS.values()]
    assert len(set(colours)) == len(colours) == 8
    assert palette.VARIANTS["untouched"][0] == palette.MODEL_COLOURS["reference"]
    assert palette.VARIANTS["reze_mic"][0] == palette.MODEL_COLOURS["adapted"]
    assert palette.css_variable(palette.MODEL_COLOURS["adapted"]) == "adapted"
    assert set(colours) <= {light for _, light, _ in palette.CSS}
