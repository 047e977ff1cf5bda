"""Words of texts and queries, and their keyed hashes. Pure, no language setting anywhere."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import regex
import Stemmer

from calmem import stopwords
from calmem.hits import QueryToken
from calmem.text import normalize

Script = Literal["latin", "cjk", "other"]

MAX_QUERY_WORDS = 128
# Nobody asks for the middle of a longer one; hashes of base64 blobs are not words.
_LONGEST_WORD = 64

# Scripts written without spaces: Han, kana, Thai, Lao, Myanmar, Khmer.
_UNSPACED = "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
# A mark belongs to the letter before it: Devanagari vowels, Arabic and Hebrew points.
_RUN = regex.compile(f"[{_UNSPACED}]+|[^\\W_{_UNSPACED}](?:[^\\W_{_UNSPACED}]|[^\\P{{M}}{_UNSPACED}])*+")
# Letters and digits held together by the punctuation of addresses, paths, versions, ticket numbers and names in code.
# Begins only where a run begins and never gives back what it took, so that any text is read in one pass.
_L = f"[^\\W_{_UNSPACED}]"
_A = f"[^\\W\\d_{_UNSPACED}]"
_IDENTIFIER = re.compile(rf"(?<!{_L})(?:{_L}++(?:[-_./:@#+\\]++{_L}++)++|(?={_A}++\d|\d++{_A}|\d{{4}}){_L}++)")
# An address inside a longer one is an identifier too: the host of a URL, the file of a path.
_COARSE = re.compile(r"[/:\\]+")
_SEPARATORS = re.compile(r"[\W_]+")
_CJK_RUN = re.compile(f"[{_UNSPACED}]")
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_HANGUL_RUN = re.compile(f"[{_HANGUL}]")
_ALPHABETIC = re.compile(_A)
# Accents go in the Latin and Greek alphabets, and from the Russian ё; elsewhere a mark makes another letter.
_ACCENTS = re.compile("(?<=[\u0000-\u03ff])[\u0300-\u036f]+|(?<=\u0435)\u0308|[\u0591-\u05c7]")

# Folded; a dot inside an identifier ends none.
_SENTENCE = re.compile(r"(?:[^.!?。\n]|\.(?!\s|$))+(?:[.!?。\n]+\s*|$)|[.!?。\n]+")
# From so many sentences on, those that do not ask say how it came to the question; their words weigh that much.
_LONG_TURN, _ASIDE = 3, 0.3

# Alphabets that one stemmer is enough for, by the first and last code point.
_SCRIPT_STEMMERS = (("\u0370", "\u03ff", "greek"), ("\u0400", "\u04ff", "russian"), ("\u0600", "\u06ff", "arabic"))

# Asking for a name is answered by sentences that do not hold the word "name".
_NAME_QUESTION = re.compile(
    r"我.{0,2}(?:叫什么|名字|姓名|叫啥)|what(?:'s| is| was) my name|do you (?:know|remember) my name|who am i\b",
    re.IGNORECASE,
)
_NAME_ANSWERS = ("我是", "我叫", "名字", "name")

_local = threading.local()

# A word, what it is, and whether a query leaves it out.
_Piece = tuple[str, Literal["stem", "cjk", "bigram"], bool]


@dataclass(frozen=True)
class QueryWord:
    """One word of a query: its weight in BM25 and what it is."""

    word: str
    weight: float
    kind: Literal["stem", "cjk", "bigram", "identifier"]


def script(text: str) -> Script:
    """The script that most letters of the text are written in; "latin" stands for all alphabets."""
    unspaced, alphabetic = len(_CJK_RUN.findall(text)), len(_ALPHABETIC.findall(text))
    if unspaced == alphabetic == 0:
        return "other"
    return "cjk" if 2 * unspaced >= alphabetic else "latin"


def spaced_part(text: str) -> str:
    """The text without what is written in scripts without spaces; all of it when nothing else would be left."""
    rest = _UNSPACED_RUN.sub(" ", text)
    return rest if _ALPHABETIC.search(rest) else text


def index_words(text: str) -> list[str]:
    """Every word of a text, once per occurrence: stems, characters and bigrams, identifiers whole and in parts."""
    folded = _fold(text)
    language = _language(folded)
    words = [word for word, _, _ in _pieces(folded, language)]
    words += _identifiers(folded)
    return words


def named(text: str, names: Iterable[str]) -> frozenset[str]:
    """Those of the names whose words are all in the text."""
    said = set(index_words(text))
    return frozenset(name for name in names if (words := set(index_words(name))) and words <= said)


def query_words(text: str, *, speakers: Iterable[str] = ()) -> list[QueryWord]:
    """The distinct words of a query, those that ask first, at most 128; stop words only when there is nothing else.

    The names of `speakers` are left out, unless there is nothing else: who says somebody's name is mostly somebody else.
    """
    folded = _fold(text)
    names = {word for name in speakers for word in index_words(name)}
    language = _language(folded)
    weighted: dict[str, QueryWord] = {}
    stopped: dict[str, QueryWord] = {}
    for identifier in _identifiers(folded):
        weighted.setdefault(identifier, QueryWord(identifier, 2.0, "identifier"))
    for sentences, share in _asking(folded):
        for word, kind, stop in _pieces(sentences, language):
            into = stopped if stop else weighted
            into.setdefault(word, QueryWord(word, share * (0.4 if kind == "cjk" else 1.0), kind))
    if _NAME_QUESTION.search(text):
        for word in _NAME_ANSWERS:
            weighted.setdefault(word, QueryWord(word, 1.0, "bigram" if len(word) == 2 else "stem"))
    nameless = {word: one for word, one in weighted.items() if word not in names}
    return list((nameless or weighted or stopped).values())[:MAX_QUERY_WORDS]


def english_words(query: str, *, leave_out: Iterable[str] = ()) -> dict[str, float]:
    """The distinct words of an English query that are no stop words, folded and not stemmed, with their weights.

    Those that ask first, at most 128. None of a query in another language; nor the words of the names `leave_out`.
    """
    folded = _fold(query)
    if script(query) != "latin" or _language(folded) != "english":
        return {}
    names = {word for name in leave_out for word in _RUN.findall(_fold(name))}
    weighted: dict[str, float] = {}
    for sentences, share in _asking(folded):
        for word in _RUN.findall(sentences):
            if len(word) > 1 and word not in stopwords.ENGLISH and word not in names:
                weighted.setdefault(word, share)
    return dict(list(weighted.items())[:MAX_QUERY_WORDS])


def english_stems(listed: Sequence[str]) -> list[str]:
    """The stem of each word, folded already."""
    return [_stem(word, "english") for word in listed]


def asking_part(query: str) -> str:
    """Of a long turn in a script without spaces the sentences that ask; of any other query the whole."""
    if script(query) != "cjk":
        return query
    asking, others = _asking_and_others(query.replace("？", "?").replace("！", "!"))
    return asking if asking and others else query


def content_pairs(text: str) -> frozenset[str]:
    """The pairs of characters in scripts without spaces that are no stop words; as written, not folded."""
    return frozenset(
        pair for run in _UNSPACED_RUN.findall(text) for pair in map("".join, pairwise(run)) if not _is_stop_pair(pair)
    )


def _is_stop_pair(pair: str) -> bool:
    return pair in stopwords.CJK_PAIRS or (pair[0] in stopwords.CJK and pair[1] in stopwords.CJK)


def _asking(folded: str) -> list[tuple[str, float]]:
    """A query in parts with the weight of their words: of a long turn the sentences that ask, then the others."""
    asking, others = _asking_and_others(folded)
    return [(asking, 1.0), (others, _ASIDE)] if asking else [(folded, 1.0)]


def _asking_and_others(text: str) -> tuple[str, str]:
    """Of a long turn the sentences that ask, and the others; of any other text nothing asks."""
    sentences = _SENTENCE.findall(text)
    asking = [one for one in sentences if one.rstrip().endswith("?")]
    if len(sentences) < _LONG_TURN:
        asking = []
    return "".join(asking), "".join(one for one in sentences if one not in asking)


def key_tokens(key: bytes, words: Iterable[str]) -> list[int]:
    """64-bit signed hashes of the words under a user's key (BLAKE2b): the same word differs between users."""
    return [_hash(key, word) for word in words]


def query_tokens(key: bytes, words: Iterable[QueryWord]) -> list[QueryToken]:
    """The words of a query as `key`'s postings have them."""
    return [
        QueryToken(token=_hash(key, one.word), weight=one.weight, identifier=one.kind == "identifier") for one in words
    ]


@lru_cache(maxsize=200_000)
def _hash(key: bytes, word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big", signed=True)


def _fold(text: str) -> str:
    """Width, case and accents folded."""
    decomposed = normalize("NFKD", normalize("NFKC", text).casefold())
    return normalize("NFC", _ACCENTS.sub("", decomposed))


def _language(folded: str) -> str:
    seen = _RUN.findall(folded[:4_000])
    best, most = "english", sum(word in stopwords.ENGLISH for word in seen)
    for language, stops in stopwords.BY_LANGUAGE.items():
        count = sum(word in stops for word in seen)
        if count > most:
            best, most = language, count
    return best


def _stem(word: str, language: str) -> str:
    stemmers: dict[str, Stemmer.Stemmer] = _local.__dict__.setdefault("stemmers", {})
    stemmer = stemmers.get(language)
    if stemmer is None:
        # Its own cache would cost more than it saves: `_spaced` remembers.
        stemmer = stemmers[language] = Stemmer.Stemmer(language, 0)
    return str(stemmer.stemWord(word))


def _pieces(folded: str, language: str) -> Iterable[_Piece]:
    for match in _RUN.finditer(folded):
        run = match.group()
        if _CJK_RUN.match(run):
            for place, character in enumerate(run):
                yield character, "cjk", character in stopwords.CJK
                if place + 1 < len(run):
                    pair = run[place : place + 2]
                    yield pair, "bigram", _is_stop_pair(pair)
        elif _HANGUL_RUN.match(run):
            # Korean endings are written onto the word; the bigrams find it without them.
            yield run[:_LONGEST_WORD], "stem", False
            for place in range(len(run) - 1):
                yield run[place : place + 2], "bigram", False
        else:
            yield from _spaced(run[:_LONGEST_WORD], language)


@lru_cache(maxsize=50_000)
def _spaced(run: str, language: str) -> tuple[_Piece, ...]:
    """The stems of a word written between spaces.

    The alphabet decides the stemmer where it can. A text in Latin letters is guessed as a whole, and a short query
    may be guessed otherwise than the text it looks for: the English stem, which both have, lets them meet.
    """
    own = next((name for first, last, name in _SCRIPT_STEMMERS if first <= run[0] <= last), None)
    if own is not None:
        return ((_stem(run, own), "stem", False),)
    english = run if run in stopwords.ENGLISH else _stem(run, "english")
    if language == "english":
        return ((english, "stem", run in stopwords.ENGLISH),)
    stop = run in stopwords.ENGLISH or run in stopwords.BY_LANGUAGE[language]
    stem = _stem(run, language)
    return ((stem, "stem", stop),) if stem == english else ((stem, "stem", stop), (english, "stem", stop))


def _identifiers(folded: str) -> list[str]:
    """Identifiers without their separators, so that SF-123 finds SF123; in a URL or path also those it is made of."""
    found = []
    for match in _IDENTIFIER.finditer(folded):
        whole = match.group()
        if len(whole) > 4 * _LONGEST_WORD:
            continue
        parts = _COARSE.split(whole)
        found += [
            "=" + _SEPARATORS.sub("", one)
            for one in ((whole, *parts) if len(parts) > 1 else (whole,))
            if one == whole or _IDENTIFIER.fullmatch(one)
        ]
    return found
