"""The network that the primary trains by itself, for the hours in which a partner is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.party.keeping import Keep
from fedsim.party.own_table import read_own_table
from fedsim.party.post import Post, at_post
from fedsim.party.primary import SOLO, prepare, save_solo
from fedsim.party.versions import versions_here
from fedsim.protocol.transport.inproc import InProcess
from party_jobs import lay_out, read_all


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    with at_post(job, files["city"], InProcess(), versions_here()) as there:
        yield there


def trained_alone(post: Post) -> bool:
    keep = Keep(post.folder, post.job)
    save_solo(post, keep, prepare(read_own_table(post.job, post.own), post))
    return keep.has_part(SOLO)


def test_the_owner_who_wishes_to_stop_is_heard(post):
    post.station.alarm.stop()
    with pytest.raises(KeyboardInterrupt):
        trained_alone(post)
    assert not Keep(post.folder, post.job).has_part(SOLO)


def test_a_partner_that_fails_by_now_does_not_stop_it(post):
    post.station.alarm.ring("secondary 'rentals'", "its disk is full")
    assert trained_alone(post)
