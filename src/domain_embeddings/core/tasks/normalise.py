"""The keys by which texts count as equal, and the hashes that make choices independent of order."""

from __future__ import annotations

import unicodedata
from hashlib import blake2b

# Only marks that a writer may add or leave out: '+', '-', '(' and the like carry meaning in code
# and in formulas, so 'a + b' and 'a - b' stay different.
_SENTENCE_MARKS = ".,;:!?\"'`\u2018\u2019\u201c\u201d\u2026\u00a1\u00bf\u3002\u3001"
_HASH_BYTES = 8
_HASH_RANGE = 1 << (8 * _HASH_BYTES)


def clean(text: str) -> str:
    """Return the text in Unicode form NFC without surrounding or repeated white space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def comparison_key(text: str) -> str:
    """Return what two texts share when they differ in case, spacing or punctuation only.

    Sentence marks are removed at the edges of words; a text of nothing but marks keeps them.
    """
    words = unicodedata.normalize("NFKC", text).casefold().split()
    kept = [stripped for word in words if (stripped := word.strip(_SENTENCE_MARKS))]
    return " ".join(kept or words)


def pair_key(first: str, second: str) -> str:
    """Return a comparison key of two texts that does not depend on their order."""
    return "\x1f".join(sorted((comparison_key(first), comparison_key(second))))


def stable_hash(text: str, salt: str = "") -> int:
    """Return a 64-bit hash that is the same on every machine and in every run."""
    data = f"{salt}\x1f{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=_HASH_BYTES).digest(), "big")


def stable_fraction(text: str, salt: str = "") -> float:
    """Return a number in [0, 1) that depends on the text alone."""
    return stable_hash(text, salt) / _HASH_RANGE


def text_identifier(text: str, prefix: str) -> str:
    """Return an identifier that equal texts share."""
    return f"{prefix}_{stable_hash(text):016x}"
