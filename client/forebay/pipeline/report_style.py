"""The style sheet of the report's page: light and dark, no fonts or files from elsewhere."""

from typing import Final

LIGHT: Final = (
    "#2563eb",
    "#d97706",
    "#dc2626",
    "#059669",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#65a30d",
)
DARK: Final = (
    "#60a5fa",
    "#fbbf24",
    "#f87171",
    "#34d399",
    "#a78bfa",
    "#22d3ee",
    "#f472b6",
    "#a3e635",
)


def _colours(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


_LINES: Final = "".join(
    f".l{n}{{stroke:var(--c{n});fill:none;stroke-width:1.8;stroke-linejoin:round}}"
    f".f{n}{{fill:var(--c{n})}}.b{n}{{background:var(--c{n})}}"
    for n in range(len(LIGHT))
)

STYLE: Final = (
    f":root{{--ink:#1f2937;--soft:#6b7280;--paper:#fff;--card:#f8fafc;--grid:#e5e7eb;{_colours(LIGHT)}}}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--paper:#111827;"
    f"--card:#1f2937;--grid:#374151;{_colours(DARK)}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1060px;padding:24px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 6px}
p{margin:4px 0 10px}.soft,.legend{color:var(--soft);font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0}
.tile{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:22px;line-height:1.2}.tile span{color:var(--soft);font-size:13px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--grid);stroke-width:1}.dot{fill:transparent}
.range{fill:var(--c0);opacity:.45}.mark{fill:var(--c0)}
.breaker{fill:var(--c1)}.store{fill:var(--c2)}.daemon{fill:var(--c4)}
.legend span{margin-right:16px;white-space:nowrap}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:600}
td.t,th.t{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:9em}
li{margin:4px 0}code{font-size:13px}
.up{color:var(--c2);font-weight:600}
""" + _LINES
)
