"""Folders of comparisons are private, and those of other things stay as they are."""

from __future__ import annotations

import stat

import pytest

from fedsim.cli.evaluation import restrict_to_owner
from fedsim.errors import FileError


@pytest.mark.parametrize("out", ["/proc/nowhere", "file"])
def test_a_folder_that_cannot_be_created_is_refused_with_the_option_that_names_it(tmp_path, out):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--out"):
        restrict_to_owner(tmp_path / out)


@pytest.mark.parametrize(("inside", "mode"), [(None, 0o700), ("results.jsonl", 0o700), ("thesis.txt", 0o755)])
def test_a_folder_for_comparisons_is_closed_and_one_of_other_things_left_alone(tmp_path, inside, mode):
    out = tmp_path / "out"
    out.mkdir(mode=0o755)
    if inside:
        (out / inside).touch()
    restrict_to_owner(out)
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert stat.S_IMODE((out / "predictions").stat().st_mode) == 0o700
