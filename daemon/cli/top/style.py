"""How `forebay top` looks, in Textual's CSS."""

CSS = """
#summary { height: 5; padding: 0 1; }
#head { height: 1; }
#totals { height: 1; text-style: bold; }
#spool, #breakers, #stores { height: 1; }
.-away #head { background: $error; color: $text; }
.-away #totals, .-away #spool, .-away #breakers, .-away #stores { opacity: 45%; }
.-away #queues, .-away #chosen { opacity: 45%; }

#queues {
    height: 1fr;
    background: $background;
    border: round $panel-lighten-2;
    border-title-color: $text-muted;
    border-subtitle-color: $text-warning;
    scrollbar-size-vertical: 1;
}
#queues:focus { border: round $primary; background-tint: $foreground 0%; }
#nothing { height: 1; padding: 0 2; color: $text-muted; }

#chosen {
    height: 11;
    border: round $panel-lighten-2;
    border-title-color: $text-accent;
    border-title-style: bold;
    padding: 0 1;
}
#about { height: 1; }
#charts { height: 3; }
.chart { width: 1fr; height: 3; padding: 0 2 0 0; }
.chart Label { color: $text-muted; height: 1; }
.chart Sparkline { height: 2; }
#in > .sparkline--max-color { color: $primary-lighten-2; }
#in > .sparkline--min-color { color: $primary; }
#out > .sparkline--max-color { color: $success; }
#out > .sparkline--min-color { color: $success-darken-2; }
#held > .sparkline--max-color { color: $warning; }
#held > .sparkline--min-color { color: $warning-darken-2; }
#groups { height: auto; max-height: 6; }
.-low #chosen { height: 8; }
.-low #charts { display: none; }

#filter { dock: bottom; height: 3; border: round $accent; }

Sheet, Question { align: center middle; }
#sheet {
    width: 90%; max-width: 100; height: auto; max-height: 90%;
    border: round $accent; background: $surface; padding: 1 2;
}
#question {
    width: 64; max-width: 94%; height: auto;
    border: round $warning; background: $surface; padding: 1 3;
}
"""
