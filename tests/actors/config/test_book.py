"""The rules that hold for all definitions made at run time."""

from collections.abc import Mapping
from typing import Any

import pytest
import structlog
from pydantic import Field

from actors.config.book import Book, Keys, Kind
from actors.config.section import Section, bad_setting
from forebay.errors import Refused


class Pump(Section):
    litres: int
    pipe: dict[str, int] = Field(default={})


def read(name: str, keys: Keys) -> Pump:
    try:
        return Pump.model_validate(keys)
    except ValueError as problem:
        raise bad_setting(name, problem) from problem


def check(name: str, pump: Pump) -> None:
    if pump.litres > 100:
        raise Refused("BAD_REQUEST", f"{name} cannot pump that much")


PUMP = Kind("pump", 3, "pumps.unusable", read)


class Disk:
    """Keeps what a book saves."""

    def __init__(self, **kept: Keys) -> None:
        self.kept: Mapping[str, Keys] = kept
        self.is_full = False

    async def save(self, kept: Mapping[str, Keys]) -> None:
        if self.is_full:
            raise OSError("no room")
        self.kept = kept

    def book(self, **configured: Pump) -> Book[Pump]:
        return Book(PUMP, configured, self.kept, self.save, check)


async def test_a_definition_is_added_changed_and_removed() -> None:
    disk = Disk()
    book = disk.book()
    assert await book.add("p", {"litres": 1, "pipe": {"a": 1}}) == Pump(litres=1, pipe={"a": 1})
    await book.change("p", {"litres": 2, "pipe": {"b": 2}})
    assert disk.kept == {"p": {"litres": 2, "pipe": {"a": 1, "b": 2}}}
    for lasting in (book, disk.book()):
        assert lasting.find("p") == Pump(litres=2, pipe={"a": 1, "b": 2})
        assert lasting.origin("p") == "control"
    await book.remove("p")
    assert (disk.kept, book.definitions, book.knows("p")) == ({}, {}, False)
    with pytest.raises(Refused, match="there is no pump p"):
        book.find("p")


async def test_refusals() -> None:
    disk = Disk(p={"litres": 1})
    book = disk.book(f=Pump(litres=5))
    for act, code, text in (
        (book.add("p", {"litres": 1}), "CONFLICT", "there is a pump p already"),
        (book.add("f", {"litres": 1}), "CONFLICT", "there is a pump f already"),
        (book.change("f", {}), "CONFLICT", "f is defined in the configuration: change it there"),
        (book.remove("f"), "CONFLICT", "f is defined in the configuration: change it there"),
        (book.change("x", {}), "NOT_FOUND", "there is no pump x that was defined at run time"),
        (book.remove("x"), "NOT_FOUND", "there is no pump x that was defined at run time"),
        (book.add("n", {}), "BAD_REQUEST", "n: litres: Field required"),
        (book.change("p", {"odd": 1}), "BAD_REQUEST", "p: odd: Extra inputs are not permitted"),
        (book.add("n", {"litres": 101}), "BAD_REQUEST", "n cannot pump that much"),
        (book.change("p", {"litres": 101}), "BAD_REQUEST", "p cannot pump that much"),
    ):
        with pytest.raises(Refused) as refused:
            await act
        assert (refused.value.code, refused.value.text) == (code, text)
    assert disk.kept == {"p": {"litres": 1}}
    assert book.definitions == {"p": Pump(litres=1), "f": Pump(litres=5)}


async def test_it_has_a_limit_of_its_own_beside_the_configuration() -> None:
    disk = Disk()
    book = disk.book(f=Pump(litres=5))
    for name in "abc":
        await book.add(name, {"litres": 1})
    with pytest.raises(Refused, match="there are 3 pumps already"):
        await book.add("d", {"litres": 1})
    await book.remove("a")
    await book.add("d", {"litres": 1})
    assert sorted(disk.kept) == ["b", "c", "d"]


async def test_nothing_changes_if_it_cannot_be_kept() -> None:
    disk = Disk(p={"litres": 1})
    book = disk.book()
    disk.is_full = True
    for act in (book.add("n", {"litres": 1}), book.change("p", {"litres": 2}), book.remove("p")):
        with pytest.raises(OSError, match="no room"):
            await act
    disk.is_full = False
    await book.add("m", {"litres": 3})
    assert disk.kept == {"p": {"litres": 1}, "m": {"litres": 3}}
    assert book.definitions == {"p": Pump(litres=1), "m": Pump(litres=3)}


async def test_the_configuration_hides_a_definition_of_the_same_name() -> None:
    disk = Disk(p={"litres": 1}, q={"litres": 2})
    book = disk.book(p=Pump(litres=5))
    assert (book.find("p").litres, book.origin("p")) == (5, "file")
    book.reload({"q": Pump(litres=6)})
    assert {name: pump.litres for name, pump in book.definitions.items()} == {"p": 1, "q": 6}


@pytest.mark.parametrize("wrong", [{"of_a_later_version": 1}, {"litres": "many"}, {}])
async def test_a_definition_that_no_longer_fits_is_logged_and_can_be_mended(
    wrong: dict[str, Any],
) -> None:
    disk = Disk(a=wrong, b=wrong, c=wrong, hidden=wrong)
    with structlog.testing.capture_logs() as logged:
        book = disk.book(hidden=Pump(litres=1))
    assert sorted(line["pump"] for line in logged) == ["a", "b", "c"]
    assert {line["event"] for line in logged} == {"pumps.unusable"}
    assert {line["hint"] for line in logged} == {"it stays in pumps.json: change or remove it"}
    assert list(book.definitions) == ["hidden"]
    assert book.knows("a")
    # The book is full, and still takes a definition in the place of one that is not usable.
    await book.add("a", {"litres": 1})
    await book.remove("b")
    with pytest.raises(Refused, match="c: "):
        await book.change("c", {"pipe": {"a": 1}})
    assert disk.kept == {"a": {"litres": 1}, "c": wrong, "hidden": wrong}
