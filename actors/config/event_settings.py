"""Settings of the event log: what is recorded, in which format, and how much is kept."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import model_validator

from actors.config.section import GIB, MIB, Clash, Number, Section
from actors.model.units import Duration, Size, durations, format_size, numbers, sizes


class EventSettings(Section):
    mode: Literal["off", "sampled", "all"] = "off"
    """`sampled`: everything about some runs, nothing about the others."""
    format: Literal["ndjson", "parquet"] = "ndjson"
    sample: Annotated[Number, numbers(0.0001, 1)] = 0.01
    """The share of runs if `mode` is `sampled`."""
    directory: Path | None = None
    """None: `events` in the state directory."""
    roll_bytes: Annotated[Size, sizes("64Ki", "1Gi")] = 16 * MIB
    roll_interval: Annotated[Duration, durations("1s", "1d")] = 300
    max_bytes: Annotated[Size, sizes("128Ki", "1Ti")] = 1 * GIB
    """Size of all files together; above it the oldest are deleted."""

    @property
    def share(self) -> float:
        """The share of runs whose events are recorded."""
        return self.sample if self.mode == "sampled" else float(self.mode == "all")

    @model_validator(mode="after")
    def _two_files_fit(self) -> Self:
        if self.max_bytes < 2 * self.roll_bytes:
            raise Clash(
                f"max_bytes ({format_size(self.max_bytes)}) must be at least twice "
                f"roll_bytes ({format_size(self.roll_bytes)}), "
                "so that one file is there while the next is written",
                "max_bytes",
                "roll_bytes",
            )
        return self
