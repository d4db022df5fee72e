"""What differs between backbone families once tokens are embedded outside of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from domain_embeddings.core.encoders.batching import pad_rows, tokenise
from domain_embeddings.core.encoders.loading import backbone

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Texts of different length, so that one of them is padded.
PROBE = ("a", "one two three four five six seven")
_TOLERANCE = 1e-3


def padding_position(encoder: nn.Module) -> int | None:
    """Return the position number of padding where positions are counted from it, else None.

    The RoBERTa family (XLM-R, BGE-M3, MPNet) keeps a table of positions, gives padding a number of
    its own and counts the tokens that are not padding from the next one on.

    Args:
        encoder: A transformers model.
    """
    for module in encoder.modules():
        index = getattr(module, "padding_idx", None)
        table = getattr(module, "position_embeddings", None)
        if isinstance(index, int) and isinstance(table, nn.Embedding):
            return index
    return None


class TokenInput:
    """Look the tokens of all chunks of a batch up together, where the backbone allows it.

    The gradient of an embedding table is as large as the table, and making one for every chunk
    takes a fifth of a step. A backbone that is given embeddings instead of token ids no longer sees
    the ids, and some need them: the RoBERTa family counts positions by them, so it is given these
    numbers too. Whether the outputs are then the same is measured once on two texts. If they are
    not, every chunk passes its ids.

    Args:
        model: The encoder, adapters included.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        encoder = backbone(model)
        self.table = encoder.get_input_embeddings()
        self.padding = padding_position(encoder)
        self.shared = _gives_equal_outputs(model, self)

    def __call__(self, chunks: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return what the encoder takes in for each chunk.

        Args:
            chunks: Padded or packed chunks with ``input_ids`` and the tokenizer's other fields.
        """
        if not self.shared:
            return [dict(chunk) for chunk in chunks]
        return self.embed(chunks)

    def embed(self, chunks: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Replace token ids by their embeddings, and by position numbers where those are needed."""
        shapes = [chunk["input_ids"].shape for chunk in chunks]
        tokens = self.table(torch.cat([chunk["input_ids"].flatten() for chunk in chunks]))
        parts = tokens.split([shape.numel() for shape in shapes])
        inputs = []
        for chunk, part, shape in zip(chunks, parts, shapes, strict=True):
            features = {name: value for name, value in chunk.items() if name != "input_ids"}
            features["inputs_embeds"] = part.view(*shape, -1)
            if self.padding is not None and "position_ids" not in features:
                real = chunk["input_ids"].ne(self.padding)
                features["position_ids"] = real.cumsum(dim=1) * real + self.padding
            inputs.append(features)
        return inputs


def _gives_equal_outputs(model: SentenceTransformer, tokens: TokenInput) -> bool:
    """Say whether embeddings in the place of token ids leave the outputs as they are."""

    def embedded(padded: dict[str, Tensor]) -> Tensor:
        return last_states(model, tokens.embed([padded])[0])

    return outputs_agree(model, tokenise(model, PROBE), embedded)


@torch.no_grad()
def outputs_agree(
    model: SentenceTransformer,
    rows: Sequence[dict[str, list[int]]],
    other: Callable[[dict[str, Tensor]], Tensor],
) -> bool:
    """Say whether another way to run a backbone gives its own outputs.

    Args:
        model: The encoder, left in the mode that it was in.
        rows: Tokenised texts to try it on.
        other: From the padded batch of these texts to the last hidden states of their tokens, (T,
            d) in the order of `last_states`.

    Returns:
        False also where the other way fails.
    """
    padded = {name: value.to(model.device) for name, value in pad_rows(model, rows).items()}
    training = model.training
    model.eval()
    try:
        expected = last_states(model, padded)
        given = other(padded).float()
    # Every backbone has its own way of saying that it cannot.
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    finally:
        model.train(training)
    if given.shape != expected.shape:
        return False
    return bool(torch.allclose(given, expected, rtol=_TOLERANCE, atol=_TOLERANCE))


def last_states(model: Any, features: Mapping[str, Tensor]) -> Tensor:
    """Return the last hidden states of the valid tokens of a padded batch, (T, d), float32."""
    states = model[0](dict(features))["token_embeddings"]
    return states[features["attention_mask"].bool()].float()
