"""Training losses: pure functions of tensors, and a thin module around each."""

from domain_embeddings.core.losses.alignment import AlignmentLoss, alignment_components
from domain_embeddings.core.losses.espresso import EspressoLoss
from domain_embeddings.core.losses.info_nce import (
    NestedInfoNCELoss,
    false_negative_mask,
    nested_info_nce,
)
from domain_embeddings.core.losses.reze import RezeLoss, reze_loss, reze_target
from domain_embeddings.core.losses.sentence_pairs import SentencePairsLoss
from domain_embeddings.core.losses.simcse import ViewHead
from domain_embeddings.core.losses.soft_collapse import (
    SoftCollapse,
    SoftCollapseLoss,
    soft_collapse,
)
from domain_embeddings.core.losses.spectral_isotropy import (
    SpectralIsotropy,
    SpectralIsotropyLoss,
    spectral_isotropy,
)
from domain_embeddings.core.losses.tokens import (
    TokenLayout,
    TokenStatistics,
    masked_mean,
    token_statistics,
)
from domain_embeddings.core.losses.width_weighting import WidthWeighting

__all__ = [
    "AlignmentLoss",
    "EspressoLoss",
    "NestedInfoNCELoss",
    "RezeLoss",
    "SentencePairsLoss",
    "SoftCollapse",
    "SoftCollapseLoss",
    "SpectralIsotropy",
    "SpectralIsotropyLoss",
    "TokenLayout",
    "TokenStatistics",
    "ViewHead",
    "WidthWeighting",
    "alignment_components",
    "false_negative_mask",
    "masked_mean",
    "nested_info_nce",
    "reze_loss",
    "reze_target",
    "soft_collapse",
    "spectral_isotropy",
    "token_statistics",
]
