"""Help texts as people read them: docstrings, without the line breaks of the source.

Typer keeps the breaks of all paragraphs but the first, and a terminal that is narrower than the
source then breaks every line twice.
"""

import inspect

import typer


def unwrap_all(app: typer.Typer) -> None:
    """The help of every command of this application, and of those in it."""
    for command in app.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = unwrap(command.callback.__doc__ or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            unwrap_all(group.typer_instance)


def unwrap(text: str) -> str:
    """One line for each paragraph."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
