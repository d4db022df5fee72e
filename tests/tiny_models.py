"""Random sentence-transformers models small enough to build in a test, without any download."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerFast

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


_LETTERS = string.ascii_lowercase + string.digits + string.punctuation


def _wordpiece() -> PreTrainedTokenizerFast:
    from transformers import BertTokenizerFast

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    pieces = [*WORDS, *(c for c in _LETTERS if c not in WORDS), *(f"##{c}" for c in _LETTERS)]
    return BertTokenizerFast(vocab={word: i for i, word in enumerate((*special, *pieces))})


def _sentencepiece() -> PreTrainedTokenizerFast:
    from transformers import XLMRobertaTokenizer

    special = [(word, 0.0) for word in ("<s>", "<pad>", "</s>", "<unk>")]
    words = [(f"\u2581{word}", -2.0) for word in WORDS if len(word) > 1]
    letters = [(letter, -9.0) for letter in ("\u2581", *_LETTERS)]
    return XLMRobertaTokenizer(vocab=[*special, *words, *letters, ("<mask>", 0.0)])


def _byte_level(
    template: str, special: dict[str, str], side: str = "right"
) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = list(dict.fromkeys(special.values()))
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side=side,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


_CLS_SEP = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
# As in Qwen3-Embedding, the token that ends a text is also the one that pads it.
_END = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


@dataclass(frozen=True)
class Family:
    """A kind of backbone as models of it are published.

    Args:
        config: Name of the transformers configuration.
        tokenizer: Builds a tokenizer of the kind that the family has.
        pooling: Pooling mode of sentence-transformers.
        normalise: Whether the model ends in a normalisation.
        prompts: Prompts saved with the model.
        options: Further values of the configuration.
    """

    config: str
    tokenizer: Callable[[], Any]
    pooling: str
    normalise: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


# The defaults lie outside of a small vocabulary.
_NO_IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
_TASK = "Instruct: Given a question, find the passage\nQuery: "
_QWEN = {"num_key_value_heads": 2, "head_dim": 8, "attention_dropout": 0.1}
FAMILIES = {
    "bert": Family("BertConfig", _wordpiece, "mean"),
    "bert_cls": Family("BertConfig", _wordpiece, "cls"),
    "e5": Family(
        "BertConfig", _wordpiece, "mean", prompts={"query": "query: ", "document": "passage: "}
    ),
    "bge_m3": Family("XLMRobertaConfig", _sentencepiece, "cls", options={"layer_norm_eps": 1e-5}),
    "modernbert": Family(
        "ModernBertConfig",
        lambda: _byte_level("[CLS] $A [SEP]", _CLS_SEP),
        "mean",
        # Texts longer than the window, and layers of both kinds of attention.
        options={
            "local_attention": 6,
            "global_attn_every_n_layers": 2,
            "attention_dropout": 0.1,
            **_NO_IDS,
        },
    ),
    "gte_modernbert": Family(
        "ModernBertConfig",
        lambda: _byte_level("[CLS] $A [SEP]", _CLS_SEP),
        "cls",
        normalise=False,
        options=_NO_IDS,
    ),
    "gte": Family("GteConfig", _sentencepiece, "cls", options={"hidden_dropout_prob": 0.1}),
    "qwen3": Family(
        "Qwen3Config",
        lambda: _byte_level("$A <|endoftext|>", _END, "left"),
        "lasttoken",
        prompts={"query": _TASK, "document": ""},
        options=_QWEN,
    ),
    "qwen3_right": Family(
        "Qwen3Config",
        lambda: _byte_level("$A <|endoftext|>", _END, "right"),
        "lasttoken",
        prompts={"query": _TASK, "document": ""},
        options=_QWEN,
    ),
}


def tiny_family_model(
    path: str | Path, family: str, width: int = 32, layers: int = 3, seed: int = 0
) -> SentenceTransformer:
    """Build, save and load a random model of one of `FAMILIES`, tokenizer included.

    Args:
        path: Folder to write the model to.
        family: Key of `FAMILIES`.
        width: Embedding width; a multiple of 8.
        layers: Number of transformer layers.
        seed: Seed of the weights; the global generator of torch is left as it was.

    Returns:
        The model on the CPU, in evaluation mode.
    """
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    kind = FAMILIES[family]
    folder = Path(path)
    backbone = folder / "backbone"
    tokenizer = kind.tokenizer()
    tokenizer.model_max_length = 48
    tokenizer.save_pretrained(backbone)
    config = getattr(transformers, kind.config)(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=64,
        # Large enough that attention is far from uniform, so that a wrong position shows.
        initializer_range=0.2,
        **kind.options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(config)
    model.save_pretrained(backbone)
    modules = [
        Transformer(str(backbone), max_seq_length=48), Pooling(width, pooling_mode=kind.pooling)
    ]  # fmt: skip
    if kind.normalise:
        modules.append(Normalize())
    built = SentenceTransformer(modules=modules, device="cpu", prompts=dict(kind.prompts))
    built.save_pretrained(str(folder / "model"))
    return SentenceTransformer(str(folder / "model"), device="cpu").eval()
