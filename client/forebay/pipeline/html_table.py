"""Tables of the report's page."""

from collections.abc import Sequence
from html import escape


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    last_is_text: bool = False,
) -> str:
    """The first `texts` columns are text, the others numbers."""

    def cell(tag: str, column: int, text: str) -> str:
        is_text = column < texts or (last_is_text and column == len(header) - 1)
        return f"<{tag}{' class=t' if is_text else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
