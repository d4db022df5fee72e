"""Which prefixes of an embedding are trained, evaluated and shipped."""

from __future__ import annotations

from collections.abc import Sequence

from domain_embeddings.core.errors import ParameterError


def nested_widths(widths: Sequence[int], model_width: int) -> list[int]:
    """Return the widths with the model's full width at the end.

    Args:
        widths: Strictly increasing widths.
        model_width: Embedding width d of the model.

    Returns:
        The widths, d last.

    Raises:
        ParameterError: If a width is wider than the model.
    """
    wider = [width for width in widths if width > model_width]
    if wider:
        msg = f"widths: {wider} wider than the model; allowed: 1 to {model_width}"
        raise ParameterError(msg)
    return sorted({*widths, model_width})
