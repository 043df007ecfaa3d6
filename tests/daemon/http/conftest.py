"""`serving`: a daemon that the tests of one module share; each uses queues of its own."""

from collections.abc import Iterator

import pytest

from tests.daemon.http.serving import Serving, serving_on


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_on(tmp_path_factory.mktemp("serving")) as served:
        yield served
