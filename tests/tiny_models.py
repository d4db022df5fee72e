"""Random sentence-transformers models small enough to build in a test, without any download."""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

WORDS = (
    "the a of to and in is for with on card money bank transfer lost stolen payment fee rate loan "
    "account cash machine water fish tree river code function list string number file error read "
    "write open close sort search red green blue fast slow big small good bad new old"
).split()


def tiny_sentence_transformer(
    path: str | Path, width: int = 32, layers: int = 2, seed: int = 0
) -> SentenceTransformer:
    """Build, save and load a random BERT with mean pooling and normalised output.

    Args:
        path: Folder to write the model to.
        width: Embedding width; a multiple of 4.
        layers: Number of transformer layers.
        seed: Seed of the weights; the global generator of torch is left as it was.

    Returns:
        The model on the CPU, in evaluation mode.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = Path(path)
    backbone = folder / "backbone"
    backbone.mkdir(parents=True, exist_ok=True)
    letters = string.ascii_lowercase + string.digits
    vocabulary = [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *WORDS,
        *(letter for letter in letters if letter not in WORDS),
        *(f"##{letter}" for letter in letters),
        *string.punctuation,
    ]
    words = backbone / "vocab.txt"
    words.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(
        vocab={token: index for index, token in enumerate(vocabulary)}, model_max_length=64
    )
    tokenizer.save_pretrained(backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(
            BertConfig(
                vocab_size=len(vocabulary),
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=4,
                intermediate_size=2 * width,
                max_position_embeddings=64,
                initializer_range=0.2,
            )
        )
    model.save_pretrained(backbone)
    transformer = Transformer(str(backbone), max_seq_length=64)
    built = SentenceTransformer(
        modules=[transformer, Pooling(width, pooling_mode="mean"), Normalize()], device="cpu"
    )
    saved = folder / "model"
    built.save_pretrained(str(saved))
    loaded = SentenceTransformer(str(saved), device="cpu")
    loaded.eval()
    return loaded
