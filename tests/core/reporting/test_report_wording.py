from __future__ import annotations

import math

import pytest

from domain_embeddings.core.reporting import wording


@pytest.mark.parametrize(
    ("count", "shown"),
    [(64, "64 B"), (256e6, "256 MB"), (1.536e9, "1.54 GB"), (64e6, "64 MB"), (4.096e12, "4.1 TB")],
)
def test_sizes_have_decimal_units_and_three_digits(count, shown):
    assert wording.storage(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.032, "+3.2"),
        (-0.032, "-3.2"),
        (0.0, "0.0"),
        (-0.0001, "0.0"),
        (None, "n/a"),
        (math.nan, "n/a"),
    ],
)
def test_differences_carry_their_sign_unless_they_round_to_zero(value, shown):
    assert wording.signed(value) == shown


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.02, "better"),
        (0.0, 0.02, "within noise"),
        (-0.01, 0.02, "within noise"),
        (-0.02, 0.0, "within noise"),
        (-0.02, -0.001, "worse"),
        (math.nan, 0.02, "no interval"),
        (None, None, "no interval"),
    ],
)
def test_the_verdict_of_a_sure_difference_follows_from_the_bounds(low, high, verdict):
    assert wording.verdict(0.009, low, high, 0.001) == verdict


@pytest.mark.parametrize(
    ("p", "confidence", "verdict"),
    [
        (0.05, 0.95, "better"),
        (0.051, 0.95, "not after correction"),
        (0.051, 0.9, "better"),
        (math.nan, 0.95, "no interval"),
        (None, 0.95, "no interval"),
    ],
)
def test_a_claim_needs_its_corrected_p_value(p, confidence, verdict):
    assert wording.verdict(0.01, 0.001, 0.02, p, confidence) == verdict


def test_p_values_are_short_and_never_zero():
    shown = [wording.p_value(p) for p in (0.0004, 0.0123, 0.5, 1.0, None, math.nan)]
    assert shown == ["p < 0.001", "p 0.012", "p 0.50", "p 1.00", "", ""]
    assert wording.evidence(0.01, 0.02, 0.03) == "[1.0, 2.0], p 0.030"
    assert wording.evidence(None, None, None) == ""


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.01, "within tolerance"),
        (0.005, 0.01, "within tolerance"),
        (0.005, 0.02, "not settled"),
        (0.01, 0.02, "not settled"),
        (0.011, 0.02, "beyond tolerance"),
        (math.nan, 0.02, "no interval"),
        (None, None, "no interval"),
    ],
)
def test_a_loss_is_tolerable_only_if_its_whole_interval_is(low, high, verdict):
    assert wording.loss_verdict(low, high, 0.01) == verdict


def test_names_are_joined_as_in_a_sentence():
    assert [wording.join(list(names)) for names in ("", "a", "ab", "abc")] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
