"""Every `forebay …` command line in the documentation and in the help texts parses: the command and
its options exist, and it has the arguments that it needs. Nothing is run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from daemon.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md")))
DOCUMENTS = (ROOT / "README.md", ROOT / "etc" / "forebay.yaml", *PAGES)
ENDS = {"|", ";", "&", "&&", "||", ">", ">>", "<"}
COMMAND: Any = typer.main.get_command(app)


def code_in(text: str) -> Iterator[str]:
    """What stands between backticks, and the lines of indented or fenced blocks."""
    joined = text.replace("\\\n", " ")
    yield from re.findall(r"`(forebay [^`\n]+)`", joined)
    yield from re.findall(r"^(?: {4,}|# {5})(.*\bforebay .*)$", joined, re.MULTILINE)


def commands_in(line: str) -> list[list[str]]:
    """The arguments of each `forebay` in a line of the shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    found: list[list[str]] = []
    begins, is_ours = True, False
    for word in lexer:
        if word in ENDS:
            begins, is_ours = True, False
        elif is_ours:
            found[-1].append(word)
        elif word == "forebay" and begins:
            is_ours = True
            found.append([])
        else:
            begins = word == "$" or "=" in word
    return found


def alternatives(args: list[str]) -> Iterator[list[str]]:
    """`ls|show` is two commands; `[SECONDS]` and `ID` stand for a value."""
    args = [arg.strip("[]").rstrip(",.") for arg in args]
    args = ["1" if arg in ("SECONDS", "N") else arg for arg in args]
    for at, arg in enumerate(args):
        if re.fullmatch(r"\w+(\|\w+)+", arg):
            for one in arg.split("|"):
                yield from alternatives([*args[:at], one, *args[at + 1 :]])
            return
    yield args


def parse(args: list[str]) -> None:
    """Raises what the command line would. A command that is only named needs no arguments."""
    command, context, rest = COMMAND, None, list(args)
    name = "forebay"
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        context = command.make_context(name, [rest[0]], parent=context)
        name, found, _ = command.resolve_command(context, rest[:1])
        assert found is not None
        command, rest = found, rest[1:]
    if rest:
        command.make_context(name, rest, parent=context)


def documented() -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for line in code_in(path.read_text()):
            found.append((path.name, line))
    for path in sorted((ROOT / "daemon" / "cli").glob("*.py")):
        text = re.sub(r'"\n\s+f?"', "", path.read_text())
        for line in re.findall(r"\[bold\](forebay [^\[\]]+)\[/bold\]", text):
            found.append((path.name, " ".join(line.split())))
    return found


def test_commands_are_found() -> None:
    assert len(documented()) > 100
    assert commands_in("seq 3 | forebay push crm # a | comment") == [["push", "crm"]]
    assert list(alternatives(["writes", "ls|abort"])) == [["writes", "ls"], ["writes", "abort"]]
    with pytest.raises(Exception, match="Missing parameter: queue"):
        parse(["history", "--correlation-id", "ID"])
    with pytest.raises(Exception, match="No such command"):
        parse(["bogus"])
    with pytest.raises(Exception, match="No such option"):
        parse(["stats", "--bogus"])


@pytest.mark.parametrize("where, line", documented())
def test_documented_command_parses(where: str, line: str) -> None:
    for found in commands_in(line):
        for args in alternatives(found):
            if "--install-completion" in args or "--help" in args:
                continue
            try:
                parse(args)
            except Exception as problem:
                raise AssertionError(f"{where}: forebay {shlex.join(args)}: {problem}") from problem
