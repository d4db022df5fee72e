"""Truncation: cut, then normalise, the same for NumPy and torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from domain_embeddings.core.encoders.prefix import prefix

VECTORS = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(-100, 100).map(lambda value: round(value, 3)),
)


def naive(x: np.ndarray, m: int) -> np.ndarray:
    out = np.zeros((len(x), m))
    for i, row in enumerate(x):
        norm = sum(float(value) ** 2 for value in row[:m]) ** 0.5
        for j in range(m):
            out[i, j] = row[j] / norm if norm else 0.0
    return out


@given(VECTORS, st.data())
@settings(max_examples=60, deadline=None)
def test_cuts_then_normalises_in_both_libraries(x: np.ndarray, data: st.DataObject) -> None:
    m = data.draw(st.integers(1, x.shape[1]))
    np.testing.assert_allclose(prefix(x, m), naive(x, m), atol=1e-12)
    np.testing.assert_allclose(prefix(torch.from_numpy(x), m).numpy(), naive(x, m), atol=1e-12)


@given(VECTORS, st.floats(0.01, 100), st.data())
@settings(max_examples=60, deadline=None)
def test_ignores_length_and_composes(x: np.ndarray, scale: float, data: st.DataObject) -> None:
    wide = data.draw(st.integers(1, x.shape[1]))
    narrow = data.draw(st.integers(1, wide))
    np.testing.assert_allclose(prefix(x * scale, wide), prefix(x, wide), atol=1e-9)
    np.testing.assert_allclose(prefix(prefix(x, wide), narrow), prefix(x, narrow), atol=1e-9)


@pytest.mark.parametrize("m", [1, 3, 8])
def test_every_width_has_norm_one(m: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(np.linalg.norm(prefix(x, m), axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("m", [0, -1, 5])
@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_refuses_a_width_outside_the_vector(make: object, m: int) -> None:
    with pytest.raises(ValueError, match=rf"m = {m} of d = 4 "):
        prefix(make((2, 4)), m)  # type: ignore[operator]


def test_zero_prefix_stays_zero_with_zero_slope() -> None:
    x = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]], requires_grad=True)
    out = prefix(x, 2)
    (out * torch.tensor([0.3, 0.7])).sum().backward()
    assert out[0].tolist() == [0, 0]
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert not prefix(np.zeros((1, 3)), 2).any()


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_computes_in_float32_or_float64(given_dtype: torch.dtype, expected: torch.dtype) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(given_dtype)
    with torch.autocast("cpu", torch.bfloat16):
        out = prefix(x, 3)
    assert out.dtype == expected
    torch.testing.assert_close(out.norm(dim=1), torch.ones(3, dtype=expected))


def test_numpy_half_precision_becomes_float32() -> None:
    assert prefix(np.ones((2, 3), dtype=np.float16), 2).dtype == np.float32
    assert prefix(np.ones((2, 3)), 2).dtype == np.float64


def test_leaves_its_input_alone() -> None:
    x = np.arange(1.0, 7.0).reshape(2, 3)
    before = x.copy()
    prefix(x, 2)
    np.testing.assert_array_equal(x, before)


def test_gradient_is_that_of_the_formula() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(lambda v: prefix(v, 3), x.requires_grad_())


def test_numpy_users_do_not_pay_for_torch() -> None:
    code = (
        "import sys, numpy; from domain_embeddings.core.encoders.prefix import prefix;"
        "prefix(numpy.ones((1, 2)), 1); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
