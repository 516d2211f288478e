"""Fixtures of the tests of the report."""

import os
from pathlib import Path
from unittest import mock

import pytest

from shardprep.reporter.report import Report
from tests.reporter.pages import reported
from tests.support.paths import shared_folder
from tests.support.planted import planted_set


@pytest.fixture(name="passes", scope="session")
def _passes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report-cache")


@pytest.fixture(autouse=True)
def _own_cache(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(passes))


@pytest.fixture(name="planted", scope="session")
def _planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "planted", planted_set)


@pytest.fixture(name="path", scope="session")
def _path(planted: Path) -> Path:
    return planted / "tfrecords" / "planted" / "1.0.0"


@pytest.fixture(name="report", scope="session")
def _report(path: Path, passes: Path) -> Report:
    with mock.patch.dict(os.environ, SHARDPREP_CACHE=str(passes)):
        return reported(path)
