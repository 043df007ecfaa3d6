"""The picture of `forebay top`: the real screen on a daemon at work, drawn without a terminal."""

import asyncio
import re
from pathlib import Path
from typing import Final

from daemon.cli.stats.sampling import Asker
from daemon.cli.top.app import TopApp
from daemon.cli.top.view import column_of

SIZE: Final = (130, 34)
LOOKS: Final = 60
EVERY_S: Final = 0.25
FONTS: Final = re.compile(r"@font-face \{[^}]*\}")
"""Textual's pictures load fonts from elsewhere; the ones of the machine will do."""


def draw_top(socket: Path, file: Path) -> None:
    """An SVG, once there is something in the charts; the queue with the most dead letters is
    chosen."""

    async def draw() -> str:
        app = TopApp(Asker(str(socket)), EVERY_S, "", column_of("dead"))
        async with app.run_test(size=SIZE) as pilot:
            for _ in range(LOOKS):
                await pilot.pause(EVERY_S)
            await pilot.press("home")
            await pilot.pause(4 * EVERY_S)
            return app.export_screenshot(title="forebay top")

    file.write_text(FONTS.sub("", asyncio.run(draw())))
