"""What tests in several folders share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("watched_training")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watched_training import Trainings


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """Runs the scripts of tests/trainings, each once for all tests."""
    from watched_training import Trainings  # torch is imported only where it is needed

    all_of_them = Trainings(tmp_path_factory.mktemp)
    yield all_of_them
    all_of_them.close()
