from collections.abc import Iterator

import pytest

from tests.crash.lives import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as running:
        yield running
