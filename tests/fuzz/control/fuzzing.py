"""Hypothesis against a live daemon.

One daemon serves many examples, each of a few steps. An example that breaks something spoils its
daemon, and the next one gets a fresh one with the same state: so that Hypothesis can shrink. What
breaks only after all that came before cannot be shrunk; but every step of the daemon's life is
written down, and can be replayed.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import Flaky, HypothesisWarning
from hypothesis.strategies import SearchStrategy

from tests.fuzz.control.operations import OPERATIONS
from tests.fuzz.control.routes import described, plain_request, requests
from tests.fuzz.control.steps import Restart, Step, dealt, frames, plain_operation
from tests.fuzz.control.world import Broken, World
from tests.servers.postgres import fresh_database

ROOT: Final = Path(__file__).parents[3]
FAILURES: Final = ROOT / "build" / "fuzz" / "control"
CASES_OF_EXAMPLE: Final = 3
"""About as many on average."""
LOOK_EXAMPLES: Final = 50
"""After as many the daemon's memory is looked at."""


class Fuzzer:
    """`store`: sqlite or postgres. `progress` is called after each example."""

    def __init__(self, store: str, progress: Callable[["Fuzzer"], None] = lambda _: None) -> None:
        self.name = store
        self.document: Mapping[str, Any] = {}
        """What the daemon says of its HTTP routes."""
        self.counts: Counter[str] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.slowest: list[tuple[float, str]] = []
        self.peak_rss = 0
        self._progress = progress
        self._world: World | None = None
        self._place = ExitStack()
        self._examples = 0
        self._broken = Broken("nothing")
        """The latest."""

    @property
    def world(self) -> World:
        if self._world is None:
            directory, config = self._place.enter_context(fresh_place(self.name))
            self._world = World(directory, config)
            try:
                self._world.start()
            except BaseException:
                self._drop()
                raise
        return self._world

    def run(self, examples: int, *, seed_: int | None, may_restart: bool) -> None:
        """So many examples; `seed_` None: the same ones each time, and nothing is kept. Raises
        what the shrunk example broke."""
        database: ExampleDatabase | None = None
        if seed_ is not None:
            database = DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "control")
        chosen = settings(
            max_examples=examples,
            derandomize=seed_ is None,
            database=database,
            deadline=None,
            report_multiple_bugs=False,
            print_blob=False,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        self.document = self.world.document
        strategy = rounds(self.document, may_restart=may_restart)
        test = chosen(given(strategy, st.integers(0, 3))(self.example))
        try:
            with warnings.catch_warnings():
                # It says that it describes what is long, when something has broken.
                warnings.simplefilter("ignore", HypothesisWarning)
                (test if seed_ is None else seed(seed_)(test))()
        except (Broken, Flaky):
            # What Hypothesis adds is long, and says the same. Flaky: it needs what came before.
            raise Broken(str(self._broken)) from None

    def send_plain_ones(self) -> None:
        """One valid request of each operation and route."""
        self.document = self.world.document
        for op in OPERATIONS:
            self.example([plain_operation(op)], 0)
        for operation, of in described(self.document).items():
            self.example([plain_request(operation, *of)], 0)

    def example(self, steps: Sequence[Step], order: int) -> None:
        world = self.world
        try:
            world.send(steps, at_once=order == 3)
            self._examples += 1
            if self._examples % LOOK_EXAMPLES == 0:
                world.check_memory()
        except AssertionError as problem:
            raise self.spoilt(problem, steps) from problem
        self._progress(self)

    def end(self) -> None:
        """The current daemon is looked at, restarted and stopped."""
        try:
            self.world.end()
        except AssertionError as problem:
            raise self.spoilt(problem, ()) from problem
        self._drop()

    def close(self) -> None:
        self._drop()

    def replay(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.world.send([step])
        self.world.end()

    def spoilt(self, problem: AssertionError, steps: Sequence[Step]) -> Broken:
        """Writes down what happened, and gives the daemon up."""
        world = self.world
        whole = FAILURES / f"{self.name}-whole.jsonl"
        world.write_transcript(whole)
        replay = f"make fuzz-control STORE={self.name} REPLAY="
        how = [f"all that this daemon was sent: {replay}{whole}"]
        if steps:
            alone = FAILURES / f"{self.name}.jsonl"
            world.write_transcript(alone, steps)
            how = ["the case:", *map(repr, steps), f"replay it: {replay}{alone}", *how]
        self._drop()
        self._broken = Broken("\n".join([str(problem), *how]))
        return self._broken

    def _drop(self) -> None:
        world, self._world = self._world, None
        if world is None:
            return
        world.close()
        self._place.close()
        self.counts += world.counts
        self.answers += world.answers
        self.slowest = sorted([*self.slowest, *world.slowest])[-3:]
        self.peak_rss = max(self.peak_rss, world.peak_rss)

    @property
    def cases(self) -> int:
        now = 0 if self._world is None else self._world.counts.total()
        return self.counts.total() + now


@contextmanager
def fresh_place(store: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A directory, and a configuration with an empty store."""
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="forebay-fuzz-"))
        config: dict[str, Any] = {}
        if store == "postgres":
            config["cold"] = {"type": "postgres", "url": stack.enter_context(fresh_database())}
        yield Path(directory), config


def rounds(document: Mapping[str, Any], *, may_restart: bool) -> SearchStrategy[list[Step]]:
    """A few steps over the socket, over HTTP, or both; now and then with a restart at the end."""
    over_socket = frames()
    few = st.one_of(
        st.lists(dealt(over_socket), min_size=1, max_size=6),
        st.lists(dealt(over_socket[:3] + requests(document)), min_size=1, max_size=6),
    )
    if not may_restart:
        return few
    restarts = st.sampled_from([()] * 150 + [(Restart("kill"),), (Restart("stop"),)])
    return st.builds(lambda steps, restart: [*steps, *restart], few, restarts)
