"""Texts for the benchmarks: chat turns of realistic lengths, and a vocabulary with Zipf frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SENTENCES = (
    "I moved the dentist appointment to Thursday because the train was cancelled again.",
    "Could you check whether the order for the blue armchair has left the warehouse?",
    "My sister is allergic to walnuts, so please leave them out of the cake.",
    "The build failed twice last night, and both times the cache was stale.",
    "We decided to keep the old database until the end of the quarter.",
    "She painted the kitchen yellow, which looks better than I expected.",
    "What was the name of that little restaurant near the harbour?",
    "Here is a short plan: measure first, change one thing, and measure again.",
    "He started learning the cello in March and practises every evening.",
    "The meeting with the landlord is on Friday at nine, bring the signed lease.",
    "Thanks, that helps a lot.",
    "I would rather take the morning flight and work from the hotel.",
    "The invoice was paid on the third, but the reminder came anyway.",
    "Our dog hurt her paw on the beach, and the vet said to rest it for a week.",
    "If the temperature drops below zero, the pump switches itself off.",
    "Remember that the password of the guest network changes every month.",
    "They climbed the north ridge in thick fog and came back by the road.",
    "Can we split the task between two people so that it is done by Monday?",
    "The recipe needs two eggs, a cup of flour and the zest of one lemon.",
    "I finally finished the book you lent me, and the ending surprised me.",
)
# A turn's characters: log-normal. The mean is near that of people's chats (37 word pieces), one in a hundred is longer
# than a chunk.
MEDIAN_CHARS, SIGMA = 110.0, 0.95
SHORTEST, LONGEST = 12, 8_000

WORDS_PER_CHUNK = 25
VOCABULARY = 20_000
_ZIPF = 0.9
_SYLLABLES = (
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ka",
    "le",
    "mi",
    "no",
    "pu",
    "ra",
    "so",
    "ti",
    "vo",
    "zu",
    "che",
    "sha",
    "tro",
)


def turns(count: int, *, seed: int) -> list[str]:
    """`count` chat turns: the sentences above in random order, cut to log-normal lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(MEDIAN_CHARS), SIGMA, count), SHORTEST, LONGEST).astype(int)
    return [running_text(int(length), seed=seed * 1_000_003 + place) for place, length in enumerate(lengths)]


def running_text(chars: int, *, seed: int) -> str:
    """That many characters of ordinary sentences."""
    rng = np.random.default_rng(seed)
    text = ""
    while len(text) < chars:
        text += " ".join(SENTENCES[i] for i in rng.integers(len(SENTENCES), size=1 + chars // 60)) + " "
    return text[:chars]


def vocabulary() -> list[str]:
    """Made-up words, the most frequent first; none is a stop word and all differ after stemming."""
    base = len(_SYLLABLES)
    words = []
    for number in range(VOCABULARY):
        rest, word = number + base**3, ""
        while rest:
            rest, digit = divmod(rest, base)
            word += _SYLLABLES[digit]
        words.append(word + "k")
    return words


def draw_words(uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """(rows, WORDS_PER_CHUNK) positions in the vocabulary with Zipf frequencies, from numbers drawn from [0, 1)."""
    share = 1 / np.arange(1, VOCABULARY + 1) ** _ZIPF
    ends = np.cumsum(share / share.sum())
    return np.minimum(np.searchsorted(ends, uniform), VOCABULARY - 1)
