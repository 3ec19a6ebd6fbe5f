"""Predictions with the parties online, in threads of this process."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.errors import AwayError, FileError, InputError, PeerError, StaleResultError
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Activations, Infer
from fedsim.protocol.roles.primary_role import RemoteSecondary
from fedsim.protocol.transport import NO_BYTES, InProcessTransport
from fedsim.runs.budget import PrimaryBudget
from fedsim.runs.input_record import require_same_inputs
from fedsim.runs.record import read_run_record, read_test_predictions
from fedsim.runs.run_folder import SERVING_STAGE, TRAINED_MODEL, open_audit_log, read_audit_log
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.primary import prepare_primary
from fedsim.runtime.run_store import RunStore
from fedsim.runtime.secondary import run_secondary
from fedsim.training import boosted_trees
from job_fixtures import lay_out, read_all, staying
from prediction_fixtures import EMBEDDED, SOLO, STACKED, World, train_job
from session_fixtures import PATIENCE, until


@pytest.mark.parametrize(
    "world",
    [{}, STACKED, EMBEDDED],
    indirect=True,
    ids=["fedsim", "stacked", "embedded"],
)
def test_test_records_are_predicted_as_well_as_training_said(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    post = predictor.context
    split = prepare_primary(PartyData.read(post.job, post.party_file, approved=True), post).split
    found = predictor.predict(world.records[split.test.tolist()])
    truth = pl.read_csv(post.party_file.data.file)["price"].to_numpy()[split.test]
    rmse = float(np.sqrt(np.mean((np.array(found.values) - truth) ** 2)))
    assert rmse == pytest.approx(world.outcome.metrics["test"]["rmse"], rel=1e-6)
    assert found.by == world.job.training.method
    explained = predictor.predict(world.records[split.test[:2].tolist()], explained=True)
    assert explained.values == pytest.approx(found.values[:2], rel=1e-5)
    for one, value, ends in zip(explained.explanations, explained.values, explained.intervals, strict=True):
        assert (one.value, one.lower, one.upper) == pytest.approx((value, *ends))
        assert one.average + sum(partner.effect for partner in one.partners) == pytest.approx(value)
    numbers = {partner.partner for one in explained.explanations for partner in one.partners}
    assert numbers == set(range(1, len(numbers) + 1))


CLASSES = {"flats.csv": "classes.csv", 'column = "price"': 'column = "dear"'}
CLASSIFIED = {"job": {'kind = "regression"': 'kind = "classification"'}, "city": CLASSES}
STACKED_CLASSES = {"job": CLASSIFIED["job"] | STACKED["job"], "city": CLASSES}


@pytest.mark.parametrize("world", [CLASSIFIED, STACKED_CLASSES], indirect=True, ids=["fedsim", "stacked"])
def test_probabilities_are_calibrated_in_the_record_and_for_new_records_alike(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    record, test = read_run_record(predictor.context.folder), read_test_predictions(predictor.context.folder)
    found = predictor.predict(world.records[test["row"].to_list()])
    assert found.probabilities.max(axis=1) == pytest.approx(test["confidence"].to_numpy(), rel=1e-5)
    network, *both = (one for one in record.calibration if one.part == "validation")
    assert (network.of, [one.of for one in both]) == ("network", ["network and trees"] * bool(record.trees))
    assert network.temperature != 1.0
    for one in record.calibration:
        assert one.part == "test" or one.log_loss[1] <= one.log_loss[0]
    (_, last) = (one for one in record.calibration if one.of == record.calibration[-1].of)
    assert last.log_loss[1] == pytest.approx(record.metrics["test"]["log_loss"])
    explained = predictor.predict(world.records[:2], explained=True)
    assert [one.value for one in explained.explanations] == pytest.approx(explained.probabilities.max(axis=1))
    predictor._trained.facts["target"].pop("temperature")  # as earlier releases saved it
    predictor._model = predictor._trees = None
    plain = predictor.predict(world.records[test["row"].to_list()])
    assert plain.probabilities.max(axis=1) != pytest.approx(found.probabilities.max(axis=1), rel=1e-5)
    assert both or plain.values == found.values


WITHOUT = {
    "job": {'method = "fedsim"': 'method = "fedsim"\nparty_dropout = 0.25'},
    "city": {'when_partner_is_away = "solo"': 'when_partner_is_away = "others"'},
}


WITHOUT_EMBEDDED = {
    "job": EMBEDDED["job"] | {'method = "fedsim"': 'method = "stacked"\nparty_dropout = 0.25'},
    "city": WITHOUT["city"],
}


@pytest.mark.parametrize("world", [WITHOUT, WITHOUT_EMBEDDED], indirect=True, ids=["fedsim", "embedded"])
def test_a_model_trained_with_party_dropout_goes_on_without_a_partner(world):
    world.bring("notary")
    predictor = world.predictor(wait_seconds=0.2)
    found = predictor.predict(world.records[:3], explained=True)
    assert (found.by, found.away) == (world.job.training.method, ("rentals",))
    factors = RunStore(predictor.context.folder, world.job).load_weights(TRAINED_MODEL)[1]["absence"]
    assert [names for names, _ in factors] == [["rentals"]]
    assert [one.average for one in found.explanations] == pytest.approx(found.values)
    assert np.array([(one.lower, one.upper) for one in found.explanations]) == pytest.approx(found.intervals)
    assert [one.partners for one in found.explanations] == [[], [], []]
    everyone, without = read_run_record(predictor.context.folder).absence
    assert (everyone.away, without.away) == (None, "rentals")
    assert everyone.metrics["rmse"] != without.metrics["rmse"]
    world.bring("rentals")
    until(lambda: all(predictor.online().values()))
    again = predictor.predict(world.records[:3], explained=True)
    assert again.away == ()
    without_rentals = [one.without["rentals"] for one in again.explanations]
    assert without_rentals == pytest.approx(found.values, rel=1e-4)
    assert again.values != pytest.approx(found.values, rel=1e-4)


def test_validation_records_are_judged_by_trees_that_did_not_learn_them(tmp_path, monkeypatch):
    refit = boosted_trees.ChosenTrees.refit

    def absurd(*chosen):
        model = refit(*chosen)
        return replace(model, trees=replace(model.trees, baseline=model.trees.baseline + 1e9))

    monkeypatch.setattr(boosted_trees.ChosenTrees, "refit", absurd)
    world = World(tmp_path, WITHOUT_EMBEDDED, train_job)
    metrics = world.outcome.metrics
    assert 100 * metrics["validation"]["rmse"] < metrics["test"]["rmse"]
    store = RunStore(world.predictor().context.folder, world.job)
    assert all(stretch < 100 for _, stretch in store.load_weights(TRAINED_MODEL)[1]["absence"])
    world.close()


@pytest.mark.parametrize("settings", [WITHOUT, WITHOUT_EMBEDDED], ids=["fedsim", "embedded"])
def test_intervals_contain_validation_records_while_a_partner_is_away(settings, tmp_path, monkeypatch):
    # Trees that did not learn them.
    monkeypatch.setattr(boosted_trees.ChosenTrees, "refit", lambda chosen, *_: chosen.model)
    world = World(tmp_path, settings, train_job)
    world.bring("notary")
    predictor = world.predictor(wait_seconds=0.2)
    post = predictor.context
    rows = prepare_primary(PartyData.read(post.job, post.party_file, approved=True), post).split.validation
    found = predictor.predict(world.records[rows.tolist()])
    truth = pl.read_csv(post.party_file.data.file)["price"].to_numpy()[rows]
    inside = (found.intervals[:, 0] <= truth + 1e-6) & (truth - 1e-6 <= found.intervals[:, 1])
    assert inside.sum() == min(len(rows), math.ceil(0.9 * (len(rows) + 1)))
    world.close()


def test_one_record_alone_is_predicted_as_among_others(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    together = predictor.predict(world.records[:5]).values
    alone = [predictor.predict(world.records[row : row + 1]).values[0] for row in range(5)]
    assert alone == pytest.approx(together, rel=1e-4)


def test_a_partner_that_is_away_is_replaced_by_the_solo_network_and_the_answer_says_so(world):
    world.bring("notary")
    found = world.predictor(wait_seconds=0.5).predict(world.records[:3])
    assert (found.by, found.away, len(found.values)) == ("solo", ("rentals",), 3)


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_a_partner_that_is_away_is_an_error_where_the_owner_wants_that(world):
    world.bring("notary")
    with pytest.raises(AwayError) as never:
        world.predictor(wait_seconds=0.5).predict(world.records[:3])
    assert (never.value.code, never.value.joined) == ("peer-away", False)


@pytest.mark.parametrize("world", [{"job": WITHOUT["job"], "city": SOLO}], indirect=True)
def test_a_model_that_could_do_without_a_partner_names_the_setting(world):
    world.bring("notary")
    with pytest.raises(AwayError, match="when_partner_is_away"):
        world.predictor(wait_seconds=0.5).predict(world.records[:3])


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_a_partner_that_comes_back_is_asked_again(world):
    world.bring("notary")
    predictor = world.predictor(wait_seconds=0.5)
    with pytest.raises(AwayError):
        predictor.predict(world.records[:1])
    world.bring("rentals")
    predictor.context.connection.wait_seconds = PATIENCE
    assert predictor.predict(world.records[:1]).by == "fedsim"


def test_parties_that_stay_are_in_the_phase_of_serving(world):
    with (
        staying(world.job, world.files["notary"], world.transport) as notary,
        staying(world.job, world.files["rentals"], world.transport) as rentals,
    ):
        world.predictor().predict(world.records[:1])
        assert [party.progress.phases()[-1]["name"] for party in (notary, rentals)] == [SERVING_STAGE] * 2


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_a_partner_that_stopped_with_a_word_and_came_back_is_asked_again(world):
    world.bring("notary")
    predictor = world.predictor()
    with staying(world.job, world.files["rentals"], world.transport):
        assert predictor.predict(world.records[:1]).by == "fedsim"
    world.bring("rentals")
    assert predictor.predict(world.records[:1]).by == "fedsim"


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
@pytest.mark.parametrize("changed", ["rows", "features"])
def test_a_partner_whose_table_has_changed_since_training_does_not_answer_and_the_primary_learns_why(world, changed):
    table = world.files["rentals"].data.file
    rows = pl.read_csv(table)
    (rows.reverse() if changed == "rows" else rows.with_columns(pl.col(rows.columns[-1]) + 1)).write_csv(table)
    world.bring("notary")
    predictor = world.predictor()
    with ThreadPoolExecutor(1) as pool:
        predicted = pool.submit(predictor.predict, world.records[:1])
        with (
            raises(StaleResultError, "inputs-changed"),
            open_party_context(
                world.job, world.files["rentals"], world.transport, software_versions(), predicting=True
            ) as post,
        ):
            run_secondary(post, stay=True)
        predictor.context.connection.wait_seconds = 0.1  # it has said why it does not answer
        with pytest.raises(AwayError, match="its table changed"):
            predicted.result()


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_another_release_uses_a_model_and_does_not_pass_for_the_one_that_trained_it(world, monkeypatch):
    monkeypatch.setattr("fedsim.runs.input_record.VERSION", "9.9")
    world.bring("notary")
    world.bring("rentals")
    assert world.predictor().predict(world.records[:1]).by == "fedsim"
    with raises(StaleResultError, "inputs-changed"):
        require_same_inputs(world.job, [world.files["rentals"]])


@pytest.mark.parametrize("world", [{"city": SOLO}], indirect=True)
def test_a_primary_predicts_after_its_own_table_changed_or_left_and_says_so(world, caplog):
    table = world.files["city"].data.file
    table.write_text(table.read_text() + "\n")
    for expected in (1, 0):
        own = world.files["city"]
        with (
            caplog.at_level("WARNING"),
            open_party_context(world.job, own, world.transport, software_versions(), predicting=True),
        ):
            pass
        assert caplog.text.count("change of the table") == expected
        caplog.clear()
        table.unlink(missing_ok=True)


CLASSES = {
    "job": {'kind = "regression"': 'kind = "classification"'},
    "city": {'column = "price"': 'column = "dear"', "flats.csv": "classes.csv"},
}


@pytest.mark.parametrize("world", [CLASSES], indirect=True)
def test_classes_come_back_as_the_user_wrote_them(world):
    world.bring("notary"), world.bring("rentals")
    found = world.predictor().predict(world.records[:20])
    assert found.classes == ("false", "true")
    assert set(found.values) <= {"false", "true"}
    assert found.probabilities.sum(axis=1) == pytest.approx(np.ones(20))


def test_records_without_a_column_are_refused_by_name(world):
    predictor = world.predictor()
    with raises(InputError, "missing-column"):
        predictor.predict(world.records.drop("storey"))
    with raises(InputError, "no-records"):
        predictor.predict(world.records[:0])


def test_nothing_is_predicted_before_training(tmp_path):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    with (
        raises(FileError, "not-trained"),
        open_party_context(job, files["city"], InProcessTransport(), software_versions()) as post,
    ):
        Predictor(post, wait_seconds=0.1)


USED_ONCE = {"rentals": {"max_tau = 0.05": "max_tau = 0.05\nmax_record_uses = 1"}}


@pytest.mark.parametrize("world", [USED_ONCE], indirect=True)
def test_a_secondary_limits_how_often_predictions_use_one_of_its_records(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    first = predictor.predict(world.records[:1]).values
    assert predictor.predict(world.records[:1]).values == first
    with pytest.raises(PeerError):
        predictor.predict(world.records[:1].with_columns(lat=pl.col("lat") + 0.003))
    spent = PrimaryBudget.of(world.files["rentals"], "city").read()
    assert spent.most_uses == 1
    entries = read_audit_log(open_audit_log(world.files["rentals"]).path)
    assert [entry.facts for entry in entries if entry.what == "budget"][-1]["most uses of a record"] == 1


def test_where_the_coordinator_is_away_the_solo_network_answers_and_names_it(world):
    world.bring("rentals")
    found = world.predictor(wait_seconds=0.5).predict(world.records[:3])
    assert (found.by, found.away) == ("solo", ("notary",))
    assert "coordinator 'notary'" in found.reason


def test_a_partner_that_has_been_away_for_longer_than_we_wait_is_not_waited_for_again(world, monkeypatch):
    world.bring("notary")
    predictor = world.predictor(wait_seconds=1.0)
    predictor.predict(world.records[:1])
    monkeypatch.setattr("fedsim.runtime.predictor.time", SimpleNamespace(monotonic=time.monotonic, sleep=pytest.fail))
    for row in range(5):
        assert predictor.predict(world.records[row : row + 1]).by == "solo"


def test_a_staying_secondary_that_was_asked_nonsense_answers_the_next_question(world):
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    before = predictor.predict(world.records[:3]).values
    session = predictor._linking.peers["rentals"].session()
    with raises(PeerError, "peer-stopped"):
        session.call(Infer(np.array([10**6], np.int32), sealed=NO_BYTES), Activations)
    assert predictor.predict(world.records[:3]).values == before
    joined = [entry for entry in read_audit_log(open_audit_log(world.files["rentals"]).path) if entry.what == "joined"]
    assert len(joined) < 10


def test_a_training_that_has_ended_is_not_begun_again(world):
    world.bring("rentals")
    post = world.predictor().context
    session = post.acceptors[0].session_with(post.secondaries[0])
    with raises(PeerError, "training-refused"):
        RemoteSecondary(session, wire_format("float32")).begin(2)
