"""Removes the line breaks of the source from help texts.

Typer keeps the breaks of all paragraphs but the first, and a terminal that is narrower than the
source then breaks every line twice.
"""

import inspect

import typer


def unwrap_all(app: typer.Typer) -> None:
    """Unwraps the help of every command of this application and of its groups."""
    for command in app.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = unwrap(command.callback.__doc__ or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            unwrap_all(group.typer_instance)


def unwrap(text: str) -> str:
    """One line per paragraph."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
