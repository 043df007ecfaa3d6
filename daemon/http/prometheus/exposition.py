"""Prometheus' text formats: families of samples in, the bytes of an answer out.

Labels come rendered: a queue's are made once a scrape, not once a sample. prometheus_client's
encoder escapes and sorts every label of every sample: to encode the 40,000 samples of 500 busy
queues of 4 flows took 165 ms of CPU, to make and encode them here takes 30, and 10 where few queues
have changed (daemon/http/prometheus/queue_lines.py). What the library does is kept: it negotiates
the format, shows the process, and its parser reads all of this in the tests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

Kind = Literal["counter", "gauge", "histogram", "summary"]
OPEN_METRICS: Final = "application/openmetrics-text"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. A counter's name ends in `_total`."""

    name: str
    kind: Kind
    help: str
    lines: list[str] = field(default_factory=list)

    def add(self, labels: str, value: float) -> None:
        """`labels` as `labelled` makes them; empty: none."""
        self.lines.append(f"{self.name}{labels} {value}\n")

    def add_distribution(
        self, labels: str, bounds: Sequence[str], below: Sequence[int], total: float
    ) -> None:
        """A histogram's buckets, cumulated; the last of `below` counts all."""
        name, inner = self.name, labels[1:-1]
        comma = "," if inner else ""
        self.lines.extend(
            f'{name}_bucket{{{inner}{comma}le="{bound}"}} {count}\n'
            for bound, count in zip(bounds, below, strict=True)
        )
        self.add_summary(labels, below[-1], total)

    def add_summary(self, labels: str, count: int, total: float) -> None:
        self.lines.append(f"{self.name}_count{labels} {count}\n")
        self.lines.append(f"{self.name}_sum{labels} {total}\n")


@dataclass(slots=True)
class Page:
    """The families of one scrape, in order, by name."""

    families: dict[str, Family] = field(default_factory=dict)

    def family(self, name: str, kind: Kind, text: str) -> Family:
        found = self.families.get(name)
        if found is None:
            found = self.families[name] = Family(f"forebay_{name}", kind, text)
        return found

    def gauge(self, name: str, text: str, value: float, labels: str = "") -> None:
        self.family(name, "gauge", text).add(labels, value)

    def counter(self, name: str, text: str, value: float, labels: str = "") -> None:
        self.family(f"{name}_total", "counter", text).add(labels, value)


def labelled(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def escaped(value: str) -> str:
    value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    # A name may hold what is no Unicode, and a whole scrape must not fail because of it.
    return value.encode(errors="replace").decode()


class Exposition:
    """Renders families, and beside them what is known of the process."""

    def __init__(self) -> None:
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)

    def render(self, families: Iterable[Family], content_type: str) -> bytes:
        is_open_metrics = content_type.startswith(OPEN_METRICS)
        encode, _ = choose_encoder(content_type)
        return text(families, is_open_metrics=is_open_metrics) + encode(self._process)


def negotiate(accept: str) -> str:
    """The content type of the answer to a request that accepts these: one of two. The library
    would repeat whatever version a request names, and fail over one that is none."""
    accepted = {entry.partition(";")[0].strip().lower() for entry in accept.split(",")}
    _, content_type = choose_encoder(OPEN_METRICS if OPEN_METRICS in accepted else "")
    return content_type


def text(families: Iterable[Family], *, is_open_metrics: bool) -> bytes:
    """Families without samples are left out."""
    parts: list[str] = []
    for family in families:
        if not family.lines:
            continue
        name = family.name
        if is_open_metrics and family.kind == "counter":
            name = name.removesuffix("_total")
        parts.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
        parts += family.lines
    return "".join(parts).encode()
