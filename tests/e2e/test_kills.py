"""Any party is killed at any moment and started again; the weights do not show it.

``FEDSIM_KILLS`` is how often each role is killed in one job, 6 times where it is not set.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import numpy as np
import pytest

from e2e.process_hooks import fatal
from fedsim_lab.faults.local_job import CITY, NOTARY, RELAY, RENTALS, SCHOOLS, create_local_job
from fedsim_lab.faults.network import PORT, NamespaceNetwork
from fedsim_lab.faults.processes import each, party_processes, setting
from relay_fixtures import outbound_only

KILLS = int(os.environ.get("FEDSIM_KILLS", "6"))
EPOCHS, STEPS_PER_EPOCH = 10, 6
LAST_STEP = EPOCHS * STEPS_PER_EPOCH
# A party that is started after all the others have finished looks for them so long, instead of 10 to 120 seconds.
SHORT = {
    CITY: each(
        *(setting("fedsim.runtime.linking", name, 3.0) for name in ("FINISH_SECONDS", "FAILURE_NOTICE_SECONDS"))
    ),
    RENTALS: setting("fedsim.runtime.secondary", "GRACE_SECONDS", 4.0),
    SCHOOLS: setting("fedsim.runtime.secondary", "GRACE_SECONDS", 4.0),
}


def learnt_in_quiet(folder, **changes):
    with party_processes(create_local_job(folder, **changes)) as parties:
        parties.start()
        return parties.finish()


@pytest.mark.slow
def test_every_role_is_killed_at_random_and_the_weights_are_those_of_a_quiet_run(tmp_path):
    job = {"n_secondaries": 2, "training": {"epochs": EPOCHS}}
    expected, place = learnt_in_quiet(tmp_path / "quiet", **job), create_local_job(tmp_path / "shot", **job)
    rng = np.random.default_rng()
    secondaries = [RENTALS, SCHOOLS] * KILLS
    victims = rng.permutation([NOTARY] * KILLS + [CITY] * KILLS + secondaries[:KILLS])
    moments = np.sort(rng.integers(-1, LAST_STEP + 1, len(victims)))
    with party_processes(place, SHORT) as parties:
        parties.start()
        for victim, moment in zip(victims, moments, strict=True):
            parties.until_step(moment)
            time.sleep(rng.uniform(0, 0.3))
            parties.restart(str(victim))
        assert parties.finish() == expected


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return learnt_in_quiet(tmp_path_factory.mktemp("quiet") / "job")


@pytest.mark.slow
def test_parties_that_only_dial_out_meet_at_a_relay_and_each_may_be_killed(expected, tmp_path):
    """Each behind a proxy, in a network where nothing else is reached; without root, on one network."""
    apart = NamespaceNetwork.available()
    address = {"address": f"relay://10.78.1.2:{PORT}"}
    place = create_local_job(
        tmp_path / "job", relay=not apart, **({"coordinator": address, "primary": address} if apart else {})
    )
    with ExitStack() as stack:
        before = dict(SHORT)
        if apart:
            network = stack.enter_context(outbound_only(place))
            before = {name: each(network.enter(name), before.get(name, int)) for name in (RELAY, *place.names)}
        parties = stack.enter_context(party_processes(place, before))
        parties.start()
        for step, victim in enumerate((RELAY, CITY, RELAY, RENTALS), start=1):
            parties.until_step(3 * step)
            parties.restart(victim)
        listening = [network.listening(name) for name in place.names] if apart else []
        assert parties.finish() == expected
        assert "".join(listening) == ""
        assert "secret" not in parties.logs()


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        (NOTARY, "fedsim.linkage.private_linkage:save_linkage_state"),  # half a list is on the disk
        (NOTARY, "fedsim.protocol.roles.coordinator_role:LinkedListState.store"),  # linked, and nobody told
        (NOTARY, "fedsim.protocol.messages:Done"),  # all is done, and the primary does not know that we know
        (CITY, "fedsim.runtime.linking:save_private_links"),
        (CITY, "fedsim.runtime.primary:fit"),  # the secondaries have saved their parts, we have not
        (CITY, "fedsim.runtime.primary:_save_model"),
        (CITY, "fedsim.runtime.linking:CoordinatorLinking.end"),  # the secondaries wait for a farewell
        (RENTALS, "fedsim.runtime.secondary:_load_or_fetch_order"),
        (RENTALS, "fedsim.splitnn.secondary_model:LocalSecondary.save"),  # one checkpoint further than the primary
        (RENTALS, "fedsim.splitnn.secondary_model:LocalSecondary.use_best"),
        (RENTALS, "fedsim.runtime.run_store:RunStore.save_weights"),  # our part is saved, and the primary was not told
    ],
)
def test_a_kill_at_the_worst_moment_is_survived_too(name, moment, expected, tmp_path):
    with party_processes(create_local_job(tmp_path / "job"), SHORT | {name: fatal(moment)}) as parties:
        parties.start()
        assert parties.running[name].wait() == -9, parties.logs()
        parties.before = SHORT
        parties.start(name)
        assert parties.finish() == expected
