from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite(
    "tests.crash.audit",
    "tests.crash.consumer",
    "tests.crash.delivery_world",
    "tests.crash.destinations",
    "tests.crash.examine",
    "tests.crash.found",
    "tests.crash.producer",
)

from tests.crash.lives import Zygote  # noqa: E402


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as running:
        yield running
