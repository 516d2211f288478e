"""docs/policy.md: what is public is written down, and each change of it is seen."""

import tarfile

from tests.documents.public_names import FILE, breaking, public_names
from tests.frozen.freeze import builds
from tests.support.paths import ROOT

POLICY = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")


def test_the_public_names_and_their_arguments_are_those_that_are_written_down() -> None:
    before, after = FILE.read_text(encoding="utf-8"), public_names()
    if before != after:
        found = breaking(before, after)
        what = "\n".join(found) or "nothing that breaks programs"
        hint = "docs/policy.md says when that may change. Then: CHANGELOG.md, and"
        assert before == after, f"{what}\n{hint} python -m tests.documents.public_names"


def test_a_removed_name_and_a_new_required_argument_are_named_as_breaking() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert breaking(text, text) == []
    lines = [line for line in text.splitlines() if "def mean_std(" not in line]
    (removed,) = breaking(text, "\n".join(lines))
    assert "mean_std" in removed
    (required,) = breaking(
        text, text.replace("def clear_cache(folder)", "def clear_cache(folder, x)")
    )
    assert "clear_cache" in required
    assert (
        breaking(text, text.replace("def clear_cache(folder)", "def clear_cache(folder, x=1)"))
        == []
    )


def test_the_policy_describes_the_frozen_datasets() -> None:
    archives = sorted((ROOT / "tests" / "frozen").glob("*.tar.xz"))
    assert archives[0].name.startswith("2026-11")
    assert "from November 2026 on" in POLICY
    kinds = set[str]()
    for archive in archives:
        with tarfile.open(archive) as tar:
            kinds |= {name.split("/")[0] for name in tar.getnames()}
    assert kinds == {*builds(), "unfinished"}
