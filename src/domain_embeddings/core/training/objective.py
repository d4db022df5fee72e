"""The training objective: one forward pass, named loss components, one sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from domain_embeddings.core.encoders.backbones import TokenInput
from domain_embeddings.core.encoders.loading import backbone
from domain_embeddings.core.encoders.rotation import find_rotation
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.losses.alignment import AlignmentLoss
from domain_embeddings.core.losses.espresso import EspressoLoss
from domain_embeddings.core.losses.info_nce import false_negative_mask, nested_info_nce
from domain_embeddings.core.losses.nesting import full_precision, no_autocast
from domain_embeddings.core.losses.reze import RezeLoss
from domain_embeddings.core.losses.simcse import ViewHead
from domain_embeddings.core.losses.tokens import TokenLayout
from domain_embeddings.core.losses.width_weighting import WidthWeighting
from domain_embeddings.core.training.batches import Batch
from domain_embeddings.core.training.distributed import gather_ids, gather_texts
from domain_embeddings.core.training.gradient_cache import cached
from domain_embeddings.core.training.gradients import gradient_norms
from domain_embeddings.core.training.rotation import turn
from domain_embeddings.core.training.schedule import draw_widths, warmed_up

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.core.bundle import Bundle
    from domain_embeddings.parameters import TrainingParameters


@dataclass(frozen=True)
class Recipe:
    """What a method consists of.

    Args:
        nested: Main loss on every width; else at full width only.
        mic: Soft collapse and spectral isotropy join.
        reze: The distance to the shrunk reference relation joins.
        ese: The losses of all layers and their principal components join.
        views: Texts are paired with themselves, and compared through a head.
    """

    nested: bool
    mic: bool = False
    reze: bool = False
    ese: bool = False
    views: bool = False


def recipe(parameters: TrainingParameters) -> Recipe:
    """Return what ``training.method`` stands for (docs/method.md, section 5)."""
    return {
        "plain": Recipe(nested=False),
        "simcse": Recipe(nested=False, views=True),
        "mrl": Recipe(nested=True),
        "ese": Recipe(nested=True, ese=True),
        "mic": Recipe(nested=True, mic=True),
        "reze": Recipe(nested=parameters.reze_main == "nested", reze=True),
        "reze_mic": Recipe(nested=True, mic=True, reze=True),
    }[parameters.method]


def layer_indices(layers: str | Sequence[int], count: int) -> list[int]:
    """Translate ``training.layers`` into layer numbers, 1 for the first layer.

    Args:
        layers: ``middle`` (the middle third, both ends included), ``last``, ``all``, or numbers.
        count: Number of layers of the model.

    Returns:
        Layer numbers.

    Raises:
        ParameterError: If a number is beyond the last layer.
    """
    if isinstance(layers, str):
        middle = list(range(max(1, count // 3), max(1, 2 * count // 3) + 1))
        return {"middle": middle, "last": [count], "all": list(range(1, count + 1))}[layers]
    beyond = [layer for layer in layers if not 1 <= layer <= count]
    if beyond:
        msg = f"training.layers: {beyond} not in the model; allowed: 1 to {count}"
        raise ParameterError(msg)
    return list(layers)


def _require_one_width(model: SentenceTransformer, width: int) -> None:
    """Refuse MIC and ESE where hidden states and embeddings do not share their coordinates."""
    hidden = int(backbone(model).config.hidden_size)
    if hidden != width:
        msg = (
            f"training.method: mic, reze_mic and ese look at hidden states of width {hidden}, but "
            f"the embeddings of this model have width {width}; allowed here: plain, simcse, mrl, "
            "reze, or training.gamma=0"
        )
        raise ParameterError(msg)


def check_mapping(mapping: str, layers: Sequence[int], widths: Sequence[int]) -> None:
    """Refuse to tie widths to layers that are not as many.

    Raises:
        ParameterError: Naming both numbers.
    """
    if mapping == "pairs" and len(layers) != len(widths):
        msg = (
            "training.mapping: pairs ties the k-th width to the k-th layer; there are "
            f"{len(layers)} layers {list(layers)} for {len(widths)} widths {list(widths)}, the "
            "full width of the model included; allowed: grid, or as many layers as widths"
        )
        raise ParameterError(msg)


def mic_layers(parameters: TrainingParameters, count: int, widths: Sequence[int]) -> list[int]:
    """Return the numbers of the layers that MIC looks at; none where the method does without.

    Args:
        parameters: The section ``training``.
        count: Number of layers of the model.
        widths: Trained widths, the full one included.

    Raises:
        ParameterError: If a layer does not exist, or widths and layers cannot be tied.
    """
    if not recipe(parameters).mic or parameters.gamma == 0:
        return []
    layers = layer_indices(parameters.layers, count)
    check_mapping(parameters.mapping, layers, widths)
    return layers


@dataclass(frozen=True)
class Outputs:
    """What one forward pass gives.

    Args:
        embeddings: Shape (n_texts, d), in the order of the batch's texts.
        hidden_states: Per chosen layer, the hidden states of every chunk, each (b, L, d), or
            (1, T, d) of a packed one.
        chunks: What the chunks were, without their tokens.
        lowest: Hidden states of the lowest of these layers, or of the last one, as the model made
            them. Whatever the loss looks at depends on them.
    """

    embeddings: Tensor
    hidden_states: list[list[Tensor]]
    chunks: list[dict[str, Any]]
    lowest: list[Tensor]


def forward_chunks(  # noqa: PLR0913, PLR0917 - the model, its input and what is wanted of it
    model: nn.Module,
    tokens: TokenInput,
    batch: Batch,
    layers: Sequence[int],
    last: int,
    rotation: Tensor | None,
    *,
    cache: bool = False,
) -> Outputs:
    """Run all texts of a batch through the model once, chunk by chunk.

    Args:
        model: The encoder, possibly wrapped for distributed training.
        tokens: Makes the model's input of the chunks.
        batch: A batch of `PairCollator`.
        layers: Layers whose hidden states are wanted, 1 for the first.
        last: Number of the last layer; its states need no extra memory.
        rotation: U^T of shape (d, d) to bring hidden states into the basis of the embeddings.
        cache: Keep the activations of one chunk at a time only (`gradient_cache`).

    Returns:
        Embeddings in text order and hidden states in chunk order.
    """

    def encode(inputs: dict[str, Tensor]) -> list[Tensor]:
        # A copy: every module writes its result into what it is given.
        features = model(dict(inputs))
        states = [_states(features, layer, last) for layer in layers]
        if rotation is not None:
            states = [_rotate(state, rotation) for state in states]
        lowest = _states(features, min(layers, default=last), last)
        return [features["sentence_embedding"], lowest, *states]

    results = [
        cached(encode, inputs) if cache else encode(inputs) for inputs in tokens(batch["chunks"])
    ]
    embeddings, lowest, *hidden = [list(parts) for parts in zip(*results, strict=True)]
    kept = [{k: v for k, v in chunk.items() if k != "input_ids"} for chunk in batch["chunks"]]
    return Outputs(torch.cat(embeddings)[batch["inverse"]], hidden, kept, lowest)


def token_layout(chunks: Sequence[Mapping[str, Any]]) -> TokenLayout:
    """Say where the tokens of each text are, in padded or in packed chunks."""
    if "seq_idx" not in chunks[0]:
        return TokenLayout.from_masks([chunk["attention_mask"] for chunk in chunks])
    sequences, count = [], 0
    for chunk in chunks:
        sequences.append(chunk["seq_idx"].flatten() + count)
        count += len(chunk["cu_seq_lens_q"]) - 1
    return TokenLayout.from_packed(torch.cat(sequences), count, len(chunks))


def _states(features: Mapping[str, Any], layer: int, last: int) -> Tensor:
    """Return the hidden states of one layer; those of the last one are always there."""
    if layer == last:
        return features["token_embeddings"]
    return features["all_layer_embeddings"][layer]


def _rotate(states: Tensor, rotation: Tensor) -> Tensor:
    """Rotate hidden states in full precision, also under autocast."""
    with no_autocast(states):
        return full_precision(states) @ rotation


class Objective(nn.Module):
    """L_total = L_info_nce + gamma * L_align + alpha * L_reze, every component by name.

    Args:
        model: The encoder that is trained.
        widths: Nested widths, the last one the full width.
        parameters: Method, weights and options.
        relation_vectors: Reference relation vectors, row k for pair k; read as they are needed.
        shrinkage: REZE's offline result; only needed by methods with REZE.
        seed: Decides which widths a step trains, where they are drawn, and how a head starts.

    Attributes:
        step: Optimiser steps done so far; whoever trains keeps it up to date.
        measure_gradients: Whether the components hold the gradient norm of every term; with a
            gradient cache they never do.

    Source:
        docs/method.md, sections 2 to 5.
    """

    def __init__(  # noqa: PLR0913 - one argument per thing that it combines
        self,
        model: SentenceTransformer,
        widths: Sequence[int],
        parameters: TrainingParameters,
        relation_vectors: Bundle,
        shrinkage: Bundle,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe(parameters)
        self.settings = parameters
        self.seed, self.step = seed, 0
        self.measure_gradients = False
        self.gamma, self.alpha = parameters.gamma, parameters.alpha
        self.widths = tuple(widths)
        weights = parameters.weights if self.recipe.nested else "equal"
        self.weighting = WidthWeighting(weights, widths)
        self.last = int(backbone(model).config.num_hidden_layers)
        self.layers: list[int] = []
        if self.recipe.mic and self.gamma > 0:
            self.layers = mic_layers(parameters, self.last, widths)
            _require_one_width(model, widths[-1])
            self.alignment = AlignmentLoss(
                widths,
                tau=parameters.tau,
                lambda_corr=parameters.lambda_corr,
                lambda_var=parameters.lambda_var,
                mapping=parameters.mapping,
                across_workers=True,
            )
        if self.recipe.ese:
            self.layers = layer_indices("all", self.last)
            _require_one_width(model, widths[-1])
            self.espresso = EspressoLoss(
                widths, temperature=parameters.temperature, symmetric=parameters.symmetric
            )
            # In a tuple, so that the module is not registered a second time under another name.
            self.pooling = (next(module for module in model if isinstance(module, Pooling)),)
        if self.recipe.views:
            self.head = ViewHead(widths[-1], seed)
        if self.recipe.reze and self.alpha > 0:
            prefixes = list(widths) if parameters.reze_dims == "nested" else None
            self.reze = RezeLoss(shrinkage, prefixes)
            self.vectors = relation_vectors["vectors"]
            self.source = relation_vectors["source"]
            self.start, self.centre = (
                shrinkage[name].astype(np.float32) if name in shrinkage.arrays else None
                for name in ("rotation", "centre")
            )
        self.tokens = TokenInput(model)
        rotation = find_rotation(model)
        if rotation is not None:
            rotation.requires_grad_(False)
        # A copy in a buffer, so that it follows the model to its device.
        self.rotation: Tensor | None
        turned = None if rotation is None else rotation.linear.weight.detach().T.clone()
        self.register_buffer("rotation", turned, persistent=False)

    def needs_all_layers(self) -> bool:
        """Say whether hidden states before the last layer are looked at."""
        return any(layer != self.last for layer in self.layers)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total loss and its components.

        Args:
            batch: A batch of `PairCollator`.

        Returns:
            The scalar to minimise, and unweighted fp32 components without gradient, with the
            number of masked candidates among them.
        """
        outputs = forward_chunks(
            self.model,
            self.tokens,
            batch,
            self.layers,
            self.last,
            self.rotation,
            cache=self.settings.gradient_cache is not None,
        )
        # With several workers, everything about embeddings sees the batches of all of them.
        embeddings, whole = gather_texts(outputs.embeddings, batch), gather_ids(batch)
        ids, rows = whole["text_id"], len(whole["label"])
        mask, masked = false_negative_mask(
            ids[:rows],
            ids[rows : 2 * rows],
            labels=whole["label"],
            task_ids=whole["task"],
            negative_ids=ids[2 * rows :],
            negative_labels=whole["negative_label"],
        )
        if self.recipe.views:
            embeddings = self.head(embeddings)
        anchors, candidates = embeddings[:rows], embeddings[rows:]
        p = self.settings
        chosen = draw_widths(len(self.widths), p.widths_per_step, self.seed, self.step)
        widths = [self.widths[k] for k in chosen]
        main = chosen if self.recipe.nested else chosen[-1:]
        _, per_width = nested_info_nce(
            anchors,
            candidates,
            [self.widths[k] for k in main],
            temperature=p.temperature,
            mask=mask,
            symmetric=p.symmetric,
        )
        total = self.weighting(per_width, main)
        terms = {"info_nce": total}
        components = {"info_nce": total, "masked_negatives": masked.float()}
        learned = self.weighting.learned()
        if learned is not None:
            components["info_nce"] = per_width.mean()
            names = [f"width_weight_{width}" for width in self.widths]
            components |= dict(zip(names, learned, strict=True))
        rise = warmed_up(p.regulariser_warmup, self.step, p.steps)
        if self.recipe.ese:
            pooled = [gather_texts(states, batch) for states in self._pooled(outputs, batch)]
            parts = self.espresso(pooled, rows, mask, widths)
            total = total + parts["ese_layers"] + parts["ese_kd"]
            components |= parts
            terms |= parts
        if hasattr(self, "alignment"):
            hidden = outputs.hidden_states
            if p.mapping == "pairs":
                hidden = [hidden[k] for k in chosen]
            align, parts = self.alignment(hidden, token_layout(outputs.chunks), widths)
            total = total + rise * self.gamma * align
            components.update(align=align, **parts)
            terms |= {
                name: self.gamma * self.alignment.factor(name) * parts[name] for name in parts
            }
        if hasattr(self, "reze"):
            r0, source = self._reference(batch["pair_id"])
            # A mean over pairs: each worker takes its own, and reads their vectors only.
            own = outputs.embeddings[: 2 * len(r0)]
            distance = self.reze(*own.split(len(r0)), r0, source, widths)
            total = total + rise * self.alpha * distance
            components["reze"] = distance
            terms["reze"] = self.alpha * distance
        # A slope that ends at hidden states leaves what was encoded again for it in memory, once
        # for every term and chunk.
        if self.measure_gradients and p.gradient_cache is None:
            components |= gradient_norms(terms, outputs.lowest)
        return total, {"loss": total.detach(), **{k: v.detach() for k, v in components.items()}}

    def _pooled(self, outputs: Outputs, batch: Batch) -> list[Tensor]:
        """Return the pooled states of every layer, (n_texts, d) each, in the order of texts."""
        pool, inverse = self.pooling[0], batch["inverse"]
        layers = []
        for states in outputs.hidden_states:
            chunks = [
                pool({**chunk, "token_embeddings": own})["sentence_embedding"]
                for own, chunk in zip(states, outputs.chunks, strict=True)
            ]
            layers.append(torch.cat(chunks)[inverse])
        return layers

    def _reference(self, pair_id: Tensor) -> tuple[Tensor, Tensor]:
        """Read the reference relation vectors and sources of a batch."""
        rows = pair_id.cpu().numpy()
        vectors: Any = np.asarray(self.vectors[rows], dtype=np.float32)
        if self.start is not None:
            vectors = turn(vectors, self.start, self.centre)
        source = np.asarray(self.source[rows], dtype=np.int64)
        device = pair_id.device
        return torch.from_numpy(vectors).to(device), torch.from_numpy(source).to(device)
