"""Soft matching against figures worked out by hand, and against the definition written word by word."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem import words
from calmem.soft_match import NEAR, WordTable, shares

# In the plane, so that every cosine can be seen: dog and puppy 0.8, dog and piano 0, river and stream 0.96.
_VECTORS = {
    "dog": (1.0, 0.0),
    "dogs": (1.0, 0.0),
    "puppy": (0.8, 0.6),
    "piano": (0.0, 1.0),
    "river": (-1.0, 0.0),
    "stream": (-0.96, -0.28),
}
TABLE = WordTable.of(list(_VECTORS), np.array(list(_VECTORS.values()), np.float32))


def test_a_word_said_otherwise_counts_by_its_cosine_beyond_the_least() -> None:
    found = shares(["My puppy sleeps.", "The piano is new.", "Nothing of that"], "Where is the dog?", TABLE)
    assert found == pytest.approx([(0.8 - NEAR) / (1 - NEAR), 0, 0])


def test_a_word_that_the_text_has_counts_nothing_whatever_else_it_says() -> None:
    assert shares(["Two dogs and a puppy"], "dog", TABLE) == [0.0]


def test_the_nearest_word_of_a_text_counts_once() -> None:
    assert shares(["puppy puppy piano", "PUPPY"], "dog", TABLE) == pytest.approx([(0.8 - NEAR) / (1 - NEAR)] * 2)


def test_rare_words_count_more() -> None:
    """Of two texts one has the river; nobody has the dog: idf log(1 + 1.5/1.5) and log(1 + 2.5/0.5)."""
    river, dog = log(2), log(6)
    found = shares(["a puppy by the river", "a stream"], "dog river", TABLE)
    near_dog, near_river = (0.8 - NEAR) / (1 - NEAR), (0.96 - NEAR) / (1 - NEAR)
    assert found == pytest.approx([dog * near_dog / (dog + river), river * near_river / (dog + river)])


def test_a_word_that_the_table_lacks_lowers_the_share() -> None:
    """It is taken for one that no text has: of one text log(1 + 1.5/0.5), as the dog."""
    assert shares(["puppy"], "dog quokka", TABLE) == pytest.approx([(0.8 - NEAR) / (1 - NEAR) / 2])


def test_what_the_query_says_aside_counts_less() -> None:
    aside = "I have seen the river. It was raining. Where is the dog?"
    asked = words.english_words(aside)
    assert asked["dog"] == 1.0 > asked["river"] > 0
    both, alone = shares(["stream", "puppy"], aside, TABLE)
    assert 0 < both < alone


@pytest.mark.parametrize(
    ("query", "speakers"),
    [("我的狗在哪里?", ()), ("Wo ist der dog und die Katze?", ()), ("dog", ("Dog",)), ("the of", ())],
)
def test_nothing_is_matched_softly_in_other_languages_nor_names_nor_stop_words(
    query: str, speakers: tuple[str, ...]
) -> None:
    assert shares(["puppy", "stream"], query, TABLE, speakers=speakers) == [0.0, 0.0]


def test_a_query_of_any_length_has_so_many_words() -> None:
    """What asks counts first: the dog in the question, the river in the long story before it not any more."""
    story = "".join(f"It was number{n}. " for n in range(words.MAX_QUERY_WORDS)) + "The river. "
    asked = words.english_words(story + "Where is the dog?")
    assert len(asked) == words.MAX_QUERY_WORDS
    assert "dog" in asked
    assert "river" not in asked


def test_no_texts_have_no_shares() -> None:
    assert shares([], "dog", TABLE) == []


_some_text = st.lists(st.sampled_from([*_VECTORS, "quokka", "the", "Ünï", "x", ""]), max_size=6).map(" ".join)


@given(st.lists(_some_text, min_size=1, max_size=5), _some_text)
def test_it_is_what_its_definition_says(texts: list[str], query: str) -> None:
    asked = dict.fromkeys(words.english_words(query), 1.0)
    stem = dict(zip(_VECTORS, words.english_stems(list(_VECTORS)), strict=True))
    said = [{word for word in text.split() if word in _VECTORS} for text in texts]
    expected = [0.0] * len(texts)
    mass = 0.0
    for word in asked:
        if word not in _VECTORS:
            mass += log(2 * len(texts) + 2)
            continue
        has = [any(stem[one] == stem[word] for one in one_said) for one_said in said]
        idf = log(1 + (len(texts) - sum(has) + 0.5) / (sum(has) + 0.5))
        mass += idf
        for no, one_said in enumerate(said):
            if not has[no]:
                cosines = [float(np.dot(_VECTORS[word], _VECTORS[one])) for one in one_said]
                expected[no] += idf * max(0.0, (max(cosines, default=0.0) - NEAR) / (1 - NEAR))
    known = any(word in _VECTORS for word in asked)
    assert shares(texts, query, TABLE) == pytest.approx([one / mass if known else 0.0 for one in expected], abs=1e-6)
