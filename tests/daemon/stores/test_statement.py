"""Statements of the cold store, in the words of both databases."""

import sqlite3

import pytest

from daemon.stores.cold.statement import Now, Statement, padded

NOW = Now(1_000, 2_000)


def both(text: str) -> tuple[str, str]:
    statement = Statement(text)
    return statement.postgres, statement.sqlite([], NOW)[0]


def test_casts_and_locks_are_left_out() -> None:
    text = "SELECT $1::bytea, $2::text[] FROM runs WHERE n = $1 FOR UPDATE SKIP LOCKED"
    postgres, sqlite = both(text)
    assert postgres == text
    assert sqlite.rstrip() == "SELECT ?1, ?2 FROM runs WHERE n = ?1"


def test_words_that_one_database_has() -> None:
    postgres, sqlite = both(
        "SELECT :raw(r.error_history), least(a, b), strpos(b, c) FROM runs INDEXED BY runs_due"
        " WHERE is_due = TRUE AND :has_keys"
    )
    assert "INDEXED" not in postgres
    assert "FROM keys" in postgres
    assert "CAST(r.error_history AS BLOB), min(a, b), instr(b, c)" in sqlite
    assert "INDEXED BY runs_due WHERE is_due = 1 AND EXISTS (SELECT 1 FROM homes" in sqlite


def test_clocks_are_the_last_parameters() -> None:
    statement = Statement("UPDATE runs SET a = :now, b = :lease_now, c = :now WHERE n = $1")
    assert statement.postgres.count("$2::bigint") == 3
    assert statement.has_clock
    text, bound = statement.sqlite([7], NOW)
    assert text == "UPDATE runs SET a = ?2, b = ?3, c = ?2 WHERE n = ?1"
    assert bound == [7, 1_000, 2_000]


@pytest.mark.parametrize("wanted", [[], [2], [1, 3, 5], list(range(10))])
def test_lists_match_what_they_name(wanted: list[int]) -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE t (n INTEGER, is_odd INTEGER)")
    db.executemany("INSERT INTO t VALUES (?, ?)", [(n, n % 2) for n in range(8)])
    among = Statement("SELECT n FROM t WHERE n = ANY ($1) AND is_odd = $2 ORDER BY n")
    rows = db.execute(*among.sqlite([wanted, 1], NOW)).fetchall()
    assert [n for (n,) in rows] == [n for n in range(8) if n in wanted and n % 2]
    others = Statement("SELECT n FROM t WHERE is_odd = $2 AND n <> ALL ($1) ORDER BY n")
    rows = db.execute(*others.sqlite([wanted, 0], NOW)).fetchall()
    assert [n for (n,) in rows] == [n for n in range(8) if n not in wanted and not n % 2]
    alone = Statement("SELECT count(*) FROM t WHERE n = ANY ($1)")
    (found,) = db.execute(*alone.sqlite([wanted], NOW)).fetchone()
    assert found == sum(n in wanted for n in range(8))


@pytest.mark.parametrize("text, found", [("n = ANY ($2)", []), ("n <> ALL ($2)", [(1,)])])
def test_last_parameter_may_be_an_empty_list(text: str, found: list[tuple[int]]) -> None:
    db = sqlite3.connect(":memory:")
    statement = Statement(f"SELECT n FROM (SELECT 1 AS n) AS t WHERE n = $1 AND {text}")
    assert db.execute(*statement.sqlite([1, []], NOW)).fetchall() == found


def test_shared_locks_are_left_out() -> None:
    assert both("SELECT 1 FOR SHARE")[1].rstrip() == "SELECT 1"
    assert both("SELECT 1 FOR KEY SHARE")[1].rstrip() == "SELECT 1"


def test_lists_of_several_lengths_share_few_texts() -> None:
    statement = Statement("SELECT 1 WHERE 1 = ANY ($1)")
    texts = {statement.sqlite([list(range(1, n))], NOW)[0] for n in range(2, 130)}
    assert len(texts) == 8
    assert padded([1, 2, 3]) == [1, 2, 3, 3]


def test_own_words_of_sqlite() -> None:
    statement = Statement("SELECT ($1::bytea[])[1]", sqlite="SELECT json_extract($1, '$[0]')")
    assert statement.sqlite(["[4]"], NOW) == ("SELECT json_extract(?1, '$[0]')", ["[4]"])


def test_numbers_of_a_list_are_a_table() -> None:
    statement = Statement("SELECT n, place FROM :numbered($2) AS given WHERE n > $1 ORDER BY place")
    db = sqlite3.connect(":memory:")
    rows = db.execute(*statement.sqlite([4, [7, 3, 9]], NOW)).fetchall()
    assert rows == [(7, 0), (9, 2)]
    assert "unnest($2::bigint[]) WITH ORDINALITY" in statement.postgres
