"""Tests of the volume-preserving flow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.evaluation.flow import LAYERS, Couplings, flow
from domain_embeddings.core.evaluation.transforms import fit_transform

D = 7


def trained_couplings(width: int = D) -> Couplings:
    """Couplings with weights that do something."""
    generator = torch.Generator().manual_seed(1)
    couplings = Couplings(width, generator).double()
    for parameter in couplings.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return couplings.requires_grad_(False)


def banana(n: int = 1_000, width: int = 8, seed: int = 0) -> np.ndarray:
    """Vectors whose odd coordinates are bent by the even ones: no linear map straightens that."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)) * 0.3
    x[:, 1] += 3 * np.abs(x[:, 0])
    x[:, 3] += 3 * np.abs(x[:, 2])
    return x.astype(np.float32)


@pytest.mark.parametrize("width", [2, 3, D])
def test_the_inverse_undoes_the_couplings(width):
    couplings = trained_couplings(width)
    x = torch.randn(50, width, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    z = couplings(x)
    assert (z - x).abs().max() > 0.1
    torch.testing.assert_close(couplings.inverse(z), x)


def test_volumes_stay_as_they_are():
    couplings = trained_couplings()
    x = torch.randn(D, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(lambda row: couplings(row[None])[0], x)
    assert float(torch.linalg.det(jacobian)) == pytest.approx(1.0, abs=1e-9)
    assert (jacobian - torch.eye(D)).abs().max() > 0.1


def test_every_layer_changes_one_half_and_both_halves_are_changed():
    couplings = Couplings(D, torch.Generator().manual_seed(0))
    assert len(couplings.nets) == LAYERS
    even, odd = couplings.halves[0]
    assert sorted([*even.tolist(), *odd.tolist()]) == list(range(D))
    x = torch.randn(5, D, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(couplings(x), x)  # it begins as the identity


def test_fitting_raises_the_likelihood_of_text_that_it_has_not_seen():
    fitted = flow(banana())
    unseen = banana(seed=1)
    rotated = fit_transform("pca_centred", banana()).apply(unseen)
    # Volumes are equal, so the likelihoods compare by the size of the cloud alone.
    assert np.square(fitted.apply(unseen)).mean() < 0.9 * np.square(rotated).mean()


def test_round_clouds_are_left_nearly_alone():
    x = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    rotated = fit_transform("pca_centred", x).apply(x)
    change = np.linalg.norm(flow(x).apply(x) - rotated) / np.linalg.norm(rotated)
    assert change < 0.2


def test_the_same_seed_gives_the_same_flow_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    x = banana(1_000)
    first, again, other = (flow(x, seed).apply(x) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_few_texts_of_many_dimensions_are_not_bent_out_of_shape():
    rng = np.random.default_rng(0)
    x = prefix((rng.normal(size=(150, 48)) * np.linspace(2, 0.2, 48)).astype(np.float32), 48)
    unseen = prefix((rng.normal(size=(150, 48)) * np.linspace(2, 0.2, 48)).astype(np.float32), 48)
    fitted = flow(x)
    rotated = fit_transform("pca_centred", x).apply(unseen)
    assert np.square(fitted.apply(unseen)).mean() < 1.05 * np.square(rotated).mean()
