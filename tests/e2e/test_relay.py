"""Parties that accept no connections meet at a relay; it sees nothing, and killing it or them loses nothing."""

from __future__ import annotations

from e2e.test_kills import SHORT
from fedsim_lab.faults.local_job import CITY, NOTARY, RELAY, RENTALS, create_local_job
from fedsim_lab.faults.processes import party_processes


def test_anybody_is_killed_in_the_middle_and_the_weights_are_those_of_a_quiet_direct_run(tmp_path):
    with party_processes(create_local_job(tmp_path / "direct")) as parties:
        parties.start()
        expected = parties.finish()
    with party_processes(create_local_job(tmp_path / "relayed", relay=True), SHORT) as parties:
        parties.start()
        for step, victim in enumerate((RELAY, CITY, RELAY, RENTALS, NOTARY), start=1):
            parties.until_step(2 * step)
            parties.restart(victim)
        assert parties.finish() == expected
