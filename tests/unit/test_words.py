"""Words of texts and queries: what must meet meets, what must differ differs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calmem.words import MAX_QUERY_WORDS, index_words, key_tokens, query_words, script, spaced_part

LONG = 262_144


def asked(query: str) -> set[str]:
    return {word.word for word in query_words(query)}


def meet(query: str, text: str) -> set[str]:
    """The words of the query that the text has."""
    return asked(query) & set(index_words(text))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("running", "She runs every morning."),
        ("decisions", "We decided nothing, but a decision is due."),
        ("Bücher", "Ich habe das Buch nicht gelesen, und die Bücher sind weg."),
        ("gestrichenen Wände", "Die Wand ist grün und die gestrichene Decke nicht."),
        ("chevaux", "Les chevaux sont dans le jardin avec un cheval."),
        ("les maisons", "La maison est sur la colline pour nous."),
        ("los libros", "El libro es muy largo y no se lee."),
        ("di ragazzi", "Il ragazzo non è con il cane e sono a casa."),
        ("as cidades", "A cidade não é grande mas os dias são longos com o sol."),
        ("de huizen", "Het huis van de buurman is niet groot, maar de huizen zijn mooi."),
        ("прогулки", "Мы ходили на прогулку."),
        ("ёлка", "Мы купили елку."),
        ("θάλασσες", "Η θάλασσα ήταν ήσυχη."),
        ("الكتاب", "اشتريت كتابا جديدا"),
        ("كِتَاب", "هذا كتاب جيد"),
        ("किताबें", "मैंने दो किताबें खरीदीं"),
        ("शहर", "यह शहर बड़ा है"),
        ("부산", "주말에 부산으로 여행을 갔어요"),
        ("여행", "주말에 부산으로 여행을 갔어요"),
        ("ข้าวเหนียว", "ฉันชอบกินส้มตำกับข้าวเหนียว"),
        ("שלום", "אמרתי שָׁלוֹם לכולם"),
        ("京都", "来週、京都で友達と会います"),
        ("カタカナ", "ｶﾀｶﾅで書く"),
    ],
)
def test_a_word_meets_its_other_forms(query: str, text: str) -> None:
    assert meet(query, text)
    assert not meet(query, "Completely unrelated: quartz, bicycle, lantern.")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Café CAFÉ cafe\u0301", "cafe cafe cafe"),
        ("ＡＢＣ１２３", "abc123"),
        ("STRASSE", "straße"),
        ("İzmir", "izmir"),
        ("ﬁnal", "final"),
        ("Ёж", "еж"),
        ("①", "1"),
        ("㈱東京", "(株)東京"),
        ("ガ", "カ\u3099"),
    ],
)
def test_width_case_and_accents_are_folded(one: str, other: str) -> None:
    assert index_words(one) == index_words(other)


@pytest.mark.parametrize(("one", "other"), [("が", "か"), ("й", "и"), ("कि", "की"), ("ά", "β"), ("サ", "ザ")])
def test_a_mark_that_makes_another_letter_stays(one: str, other: str) -> None:
    assert index_words(one) != index_words(other)


def test_chinese_is_read_as_characters_and_bigrams() -> None:
    assert sorted(index_words("深圳南山")) == sorted(["深", "圳", "南", "山", "深圳", "圳南", "南山"])
    kinds = {word.word: word.kind for word in query_words("南山")}
    assert kinds == {"南": "cjk", "山": "cjk", "南山": "bigram"}
    weights = {word.word: word.weight for word in query_words("南山")}
    assert weights["南"] < weights["南山"]


def test_a_bigram_never_bridges_what_stands_apart() -> None:
    assert "圳南" not in index_words("深圳，南山")
    assert "圳南" not in index_words("深圳 abc 南山")
    assert {"abc", "深圳", "南山"} <= set(index_words("深圳abc南山"))


def test_characters_beyond_the_basic_plane_are_one_character() -> None:
    assert sorted(index_words("𠮷野家")) == sorted(["𠮷", "野", "家", "𠮷野", "野家"])


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SF123456789", "order SF123456789 was damaged"),
        ("what happened to sf-123456789?", "order SF123456789 was damaged"),
        ("SF123456789", "订单SF-123456789坏了"),
        ("JIRA-1234", "JIRA-1234 is blocked"),
        ("jira_1234", "(JIRA-1234)"),
        ("v2.3.1", "We pinned it to v2.3.1."),
        ("V2.3.1", "released as “v2.3.1”, at last"),
        ("zhao.yu@example.org", "Write to Zhao.Yu@example.org, please"),
        ("/var/log/calmem/worker.log", "see /var/log/calmem/worker.log."),
        ("worker.log", "see /var/log/calmem/worker.log."),
        ("C:\\Temp\\report-7.txt", "in C:\\Temp\\report-7.txt"),
        ("report-7.txt", "in C:\\Temp\\report-7.txt"),
        ("https://docs.example.org/setup-2.html", "read https://docs.example.org/setup-2.html first"),
        ("docs.example.org", "read https://docs.example.org/setup-2.html first"),
        ("setup-2.html", "read https://docs.example.org/setup-2.html first"),
        ("max_connections", "Set MAX_CONNECTIONS to 200"),
        ("node.js", "written for Node.js"),
        ("2025-03-30", "due on 2025-03-30"),
        ("4711", "room 4711"),
        ("iPhone15", "my iPhone15 broke"),
        ("ＳＦ１２３４５６７８９", "order SF123456789 was damaged"),
    ],
)
def test_an_identifier_is_found_whole(query: str, text: str) -> None:
    whole = {word.word for word in query_words(query) if word.kind == "identifier"}
    assert whole & set(index_words(text))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SF123456789", "order SF123456788"),
        ("SF123456789", "SF12345678 9"),
        ("JIRA-1234", "JIRA-12345"),
        ("v2.3.1", "v2.3.2 and v2.3.10"),
        ("zhao.yu@example.org", "zhao.li@example.org"),
        ("/var/log/a-1.log", "/var/log/a-2.log"),
        ("the well-known case", "a wellknown case of wells"),
    ],
)
def test_another_identifier_is_another(query: str, text: str) -> None:
    whole = {word.word for word in query_words(query) if word.kind == "identifier"}
    assert whole
    assert not whole & set(index_words(text))


@pytest.mark.parametrize("part", ["zhao", "example", "log", "calmem", "connections", "jira", "1234"])
def test_an_identifier_is_found_by_its_parts(part: str) -> None:
    assert meet(part, "zhao.yu@example.org /var/log/calmem/worker.log max_connections JIRA-1234")


def test_identifiers_weigh_more_than_words() -> None:
    weights = {word.word: word.weight for word in query_words("order sf-123456789")}
    assert weights["=sf123456789"] > weights["order"]


@pytest.mark.parametrize(
    ("query", "left"),
    [("the gate", {"gate"}), ("what did you say about the roses", {"rose"}), ("吗，花园，呢", {"花", "园", "花园"})],
)
def test_stop_words_are_left_out_beside_others(query: str, left: set[str]) -> None:
    assert asked(query) == left


@pytest.mark.parametrize(("query", "words_"), [("what is it", {"what", "is", "it"}), ("The Who", {"the", "who"})])
def test_stop_words_stand_when_there_is_nothing_else(query: str, words_: set[str]) -> None:
    assert asked(query) == words_
    assert meet(query, f"Somebody said: {query}!") == words_


def test_chinese_stop_words_stand_when_there_is_nothing_else() -> None:
    assert {"是", "谁"} <= asked("是谁")


def test_german_stop_words_are_left_out_of_german_queries() -> None:
    assert not {"ich", "nicht", "haben"} & asked("Ich wollte nicht die Küche haben und das Bad ist neu")


@pytest.mark.parametrize("text", ["", "   ", "🎉🎉", "?!…", "\u200b", "---"])
def test_text_without_words_has_none(text: str) -> None:
    assert index_words(text) == []
    assert query_words(text) == []


@pytest.mark.parametrize(
    "query",
    [
        "你知道我叫什么名字吗",
        "我的名字是什么",
        "What's my name?",
        "what is my name",
        "Do you remember my name",
        "Who am I?",
    ],
)
def test_asking_for_a_name_meets_whoever_said_it(query: str) -> None:
    assert meet(query, "你好，我是小鹏")
    assert meet(query, "我叫小鹏")
    assert meet(query, "Hello, my name is Peng.")


@pytest.mark.parametrize("query", ["name the tune", "what is the name of the dog", "who am irritating", "小鹏叫什么"])
def test_other_questions_about_names_do_not(query: str) -> None:
    assert not meet(query, "你好，我是人")


def test_a_query_has_at_most_128_distinct_words() -> None:
    many = query_words(" ".join(f"w{number}q" for number in range(100)))
    assert len(many) == MAX_QUERY_WORDS == 128
    assert len({word.word for word in many}) == 128
    assert [word.word for word in query_words("gate gate GATE gates")] == ["gate"]


def test_every_occurrence_counts_in_a_text() -> None:
    assert index_words("gate gates Gate").count("gate") == 3


def test_hashes_differ_between_users_and_are_the_same_for_one() -> None:
    ada, bob = key_tokens(b"a" * 16, ["gate", "rose"]), key_tokens(b"b" * 16, ["gate", "rose"])
    assert len({*ada, *bob}) == 4
    assert key_tokens(b"a" * 16, ["rose", "gate", "rose"]) == [ada[1], ada[0], ada[1]]


@given(st.binary(min_size=16, max_size=16), st.text())
def test_hashes_fit_a_bigint(key: bytes, word: str) -> None:
    (token,) = key_tokens(key, [word])
    assert -(2**63) <= token < 2**63


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The gate is green.", "latin"),
        ("Мы ходили на прогулку", "latin"),
        ("花园的门是绿色的", "cjk"),
        ("京都で会います", "cjk"),
        ("我用 Python 写了花园的程序", "cjk"),
        ("The word 花 means flower", "latin"),
        ("12345 !?", "other"),
        ("", "other"),
    ],
)
def test_the_script_of_a_text(text: str, expected: str) -> None:
    assert script(text) == expected


@given(st.text(max_size=300))
def test_a_text_is_found_by_itself(text: str) -> None:
    query = query_words(text)
    if words_ := set(index_words(text)):
        assert query
        assert {word.word for word in query} - {"我是", "我叫", "名字", "name"} <= words_
    else:
        assert not query


@given(st.text(max_size=100))
def test_words_are_storable_and_short(text: str) -> None:
    for word in index_words(text):
        assert word
        assert len(word) <= 4 * 64 + 1
        word.encode("utf-8")


@pytest.mark.parametrize("unit", ["a", "1", "a.", "a-1/", ".", "字", "한", "\u0301", "a\u0301", "//", "@a", "ก", "1a"])
def test_long_hostile_text_is_read_in_one_pass(unit: str) -> None:
    text = (unit * (LONG // len(unit)))[:LONG]
    assert len(index_words(text)) <= 3 * LONG
    assert len(query_words(text)) <= MAX_QUERY_WORDS


def test_in_a_long_turn_the_words_of_the_question_weigh_more() -> None:
    turn = "The weather was lovely. We walked to the harbour v2.3. Anyway, where is my bicycle? It rained later."
    weights = {word.word: word.weight for word in query_words(turn)}
    assert weights["bicycl"] == 1.0
    assert weights["harbour"] == weights["rain"] == 0.3
    assert weights["=v23"] == 2.0
    noisy = {word.word: word.weight for word in query_words("今天天气真好。散步很舒服。对了，我的单车在哪里？")}
    assert noisy["单车"] == 1.0
    assert noisy["散步"] == 0.3
    short = {word.word: word.weight for word in query_words("The weather was lovely. Where is my bicycle?")}
    assert short["weather"] == short["bicycl"] == 1.0


def test_the_spaced_part_of_a_text() -> None:
    assert spaced_part("Which pets? 周建国什么时候来 cats") == "Which pets?   cats"
    assert spaced_part("Which pets?") == "Which pets?"
    assert spaced_part("周建国 42？") == "周建国 42？"  # nothing that could be understood would be left
