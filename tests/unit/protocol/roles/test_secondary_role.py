"""Below the cut: the secondary answers what makes sense, refuses what does not, and learns from neither by mistake."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from error_fixtures import raises
from fedsim.errors import FedSimError, PeerError, PolicyError
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import (
    Activations,
    Ask,
    Begin,
    Candidates,
    Done,
    Embed,
    Farewell,
    Finish,
    ForgetBefore,
    Gradients,
    Infer,
    KeepBest,
    Meet,
    Offer,
    Phase,
    Ready,
    Restore,
    RowOrder,
    Save,
    Unchanged,
    UseBest,
    Want,
)
from fedsim.protocol.roles.primary_role import RemoteSecondary
from fedsim.protocol.roles.secondary_role import (
    RequestCounter,
    RequestLimits,
    RowMapping,
    SecondaryResponder,
    fetch_row_mapping,
)
from fedsim.protocol.transport import NO_BYTES, Envelope, LinkedRows, seal_links
from fedsim.splitnn.party_model import CPU, DamagedCheckpoint
from fedsim.splitnn.secondary_model import restore_secondary, start_secondary
from fedsim.training import NeighbourList, train_with
from fedsim.training.explain import weight_curves
from fedsim.types import EncodedTable, Links
from session_fixtures import CITY, NOTARY, RENTALS, connected, frame_of, joined, read_all, session_of, started
from training_fixtures import SPLIT, encoded_config, small_primary, small_secondaries

FEATURES, BELOW = small_secondaries()[0].features, encoded_config().secondary
ROWS, STEPS = torch.tensor([0, 3, 4, 8]), 6
NUMBERS = ROWS.numpy().astype(np.int32)


def local(folder, total_steps=STEPS, device=CPU):
    return start_secondary("rentals", FEATURES, BELOW, total_steps=total_steps, folder=folder, device=device)


LIMITS = RequestLimits(total_steps=STEPS, steps=STEPS + 2, inferences=9, rows_per_step=8, new_records=3)
KEY = np.arange(32, dtype=np.uint8)
PLAIN = RowMapping(np.arange(9, dtype=np.int32), KEY, 3)


def below_the_cut(folder, form="float32", *, order=PLAIN, limits=LIMITS, device=CPU):
    weights = local(None).model.network.state_dict()
    folder.mkdir(exist_ok=True)
    return SecondaryResponder(
        width=4,
        order=order,
        requests=RequestCounter(limits, folder),
        start=lambda asked: local(folder, asked.total_steps, device),
        load_trained=lambda: restore_secondary("rentals", FEATURES, BELOW, weights),
        finish=lambda party: party.model.keep_best(),
        on_new_rows=lambda rows: None,
        on_farewell=lambda: None,
        form=wire_format(form),
    )


class Heard:
    """A secondary that hears one message after the other, as if they came over a line."""

    def __init__(self, folder, **changes):
        self.role, self.session, self.sequence = below_the_cut(folder, **changes), session_of(RENTALS, CITY), 0

    def __call__(self, *messages):
        """The last reply."""
        reply = None
        for message in messages:
            self.sequence += 1
            reply = self.role._reply(self.session, Envelope(message, sequence=self.sequence))
        return reply

    def meet(self):
        self(Meet(True))
        return self

    def weights(self):
        return [value.clone() for value in self.role._party.model.tensors().values()]


@pytest.fixture
def hear(tmp_path):
    return Heard(tmp_path)


def gradients(step, rows=4, width=4, value=1.0, dtype=np.float32):
    return Gradients(step, values=np.full((rows, width), value, dtype))


# --- what it answers ---------------------------------------------------------------------------------------------


def test_it_tells_its_width_and_records_and_nothing_else(hear):
    ready = hear(Meet(False))
    assert (ready.width, ready.n_records) == (4, 9)
    assert isinstance(ready, Ready)


def test_a_step_is_rows_in_activations_out_gradients_in(hear):
    reply = hear(Begin(STEPS), Ask(0, rows=NUMBERS))
    assert (type(reply), reply.step, reply.values.shape, reply.values.dtype) == (Activations, 0, (4, 4), np.float32)
    before = hear.weights()
    assert hear(gradients(0)) is None
    assert any(not torch.equal(one, other) for one, other in zip(before, hear.weights(), strict=True))


def test_numbers_outside_training_are_marked_as_such(hear):
    assert hear(Begin(STEPS), Infer(rows=NUMBERS, sealed=NO_BYTES)).step == -1


def test_a_prediction_uses_the_part_that_was_saved(hear):
    hear(Meet(True))
    assert hear.session.phase is Phase.PREDICT
    assert hear(Infer(rows=NUMBERS, sealed=NO_BYTES)).values.shape == (4, 4)


def test_an_embedding_is_sent_as_it_is_and_only_where_the_job_has_one(hear):
    wanted = Embed(rows=NUMBERS, sealed=NO_BYTES)
    with raises(PeerError, "no-embedding"):
        hear(Meet(False), wanted)
    hear.role.embedding = torch.arange(27.0).reshape(9, 3)
    reply = hear(wanted)
    assert (reply.step, reply.values.tolist()) == (-1, hear.role.embedding[ROWS].tolist())


def test_a_checkpoint_that_is_not_there_is_a_fault_and_no_end(hear, caplog):
    hear(Begin(STEPS))
    assert hear(Restore(3)).fault == "its checkpoint of step 3 cannot be read"
    assert "step-000000003" in caplog.text  # for the owner, whose folder it is
    assert hear(Save(3)).fault == ""
    assert hear(Restore(3)).fault == ""
    hear(ForgetBefore(4))
    assert hear(Restore(3)).fault == "its checkpoint of step 3 cannot be read"


# --- what it refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message", [Ask(0, rows=NUMBERS), Infer(rows=NUMBERS, sealed=NO_BYTES), gradients(0), KeepBest(), Save(1), Finish()]
)
def test_nothing_is_answered_before_the_beginning(hear, message):
    with raises(PeerError, "not-begun"):
        hear(Meet(False), message)


@pytest.mark.parametrize("rows", [[-1], [9], [0, 2**31 - 1], list(range(9)) * 2, [4] * 3000, [4, 4]])
def test_rows_that_there_are_not_and_rows_asked_twice_are_refused(hear, rows):
    for message in (Ask(0, rows=np.array(rows, np.int32)), Infer(rows=np.array(rows, np.int32), sealed=NO_BYTES)):
        with raises(PeerError, "bad-rows"):
            hear(Begin(STEPS), message)


BAD = {
    "not a number": gradients(0, value=np.nan),
    "infinite": gradients(0, value=-np.inf),
    "finite and huge": gradients(0, value=3e38),
    "too few rows": gradients(0, rows=3),
    "too many rows": gradients(0, rows=5),
    "another width": gradients(0, width=3),
    "another form": gradients(0, dtype=np.float16),
    "the bits of another form": gradients(0, dtype=np.int16),
    "an earlier step": gradients(-1),
    "a later step": gradients(1),
}


@pytest.mark.parametrize("what", BAD)
def test_gradients_that_do_not_fit_are_refused_by_name_and_change_nothing(hear, what):
    hear(Begin(STEPS), Ask(0, rows=NUMBERS))
    before = hear.weights()
    with raises(PeerError, "bad-gradients"):
        hear(BAD[what])
    assert all(map(torch.equal, before, hear.weights()))


@pytest.mark.usefixtures("memory_limit")
def test_gradients_of_another_shape_take_no_memory(tmp_path):
    hear, huge = Heard(tmp_path, form="int8"), Gradients(0, values=np.zeros((4096, 8192), np.int8))
    hear(Begin(STEPS), Ask(0, rows=NUMBERS))
    with raises(PeerError, "bad-gradients"):
        hear(huge)


def test_gradients_are_taken_once(hear):
    hear(Begin(STEPS), Ask(0, rows=NUMBERS), gradients(0))
    before = hear.weights()
    with raises(PeerError, "bad-gradients"):
        hear(gradients(0))
    assert all(map(torch.equal, before, hear.weights()))


def test_gradients_without_a_question_are_refused(hear):
    with raises(PeerError, "bad-gradients"):
        hear(Begin(STEPS), Infer(rows=NUMBERS, sealed=NO_BYTES), gradients(0))


@pytest.mark.parametrize("message", [Want(True), Unchanged(), Done(""), Ready(1, 1)])
def test_a_message_that_belongs_elsewhere_has_no_place_here(hear, message):
    with raises(PeerError, "unexpected-message"):
        hear(Begin(STEPS), message)


@pytest.mark.parametrize("steps", [0, -1, -(2**63), STEPS + 1, 10**15])
def test_training_of_no_steps_or_of_more_than_the_job_has_is_refused(hear, steps):
    with raises(PeerError, "bad-steps"):
        hear(Begin(steps))


@pytest.mark.parametrize(
    "message", [Ask(0, rows=NUMBERS), gradients(0), Save(1), Restore(1), UseBest(), ForgetBefore(1)]
)
def test_a_part_that_is_used_for_predictions_is_not_trained(hear, message):
    with raises(PeerError, "not-begun"):
        hear(Meet(True), message)


def test_there_is_no_way_back_to_what_was_never_kept(hear):
    with raises(PeerError, "unexpected-message"):
        hear(Begin(STEPS), UseBest())


@pytest.mark.parametrize("message", [UseBest(), Restore(0)])
def test_there_is_no_way_back_in_the_middle_of_a_step(hear, message):
    hear(Begin(STEPS), KeepBest(), Save(0), Ask(0, rows=NUMBERS))
    with raises(PeerError, "gradients-due"):
        hear(message)


ANY = [
    Meet(False), Meet(True), Begin(STEPS), Begin(0), Begin(-3), Begin(2**62),
    Ask(0, rows=NUMBERS), Ask(-5, rows=NUMBERS), Ask(2**62, rows=NUMBERS), Ask(1, rows=NUMBERS[:0]),
    Infer(rows=NUMBERS, sealed=NO_BYTES), Infer(rows=NUMBERS[:0], sealed=NO_BYTES),
    Infer(rows=-NUMBERS, sealed=NO_BYTES),
    gradients(0), gradients(1), gradients(0, value=np.nan), gradients(1, rows=0), gradients(0, value=1e38),
    KeepBest(), UseBest(), Save(0), Save(-1), Save(2**62), Restore(0), Restore(-(2**62)), Restore(2**62),
    ForgetBefore(0), ForgetBefore(-1), ForgetBefore(2**62), Finish(), Want(True),
]  # fmt: skip


def test_messages_in_any_order_are_answered_or_refused_and_nothing_else(tmp_path):
    rng, outcomes = np.random.default_rng(13), []
    for _ in range(30):
        hear = Heard(tmp_path, limits=replace(LIMITS, steps=500, inferences=500))
        outcomes += [is_answered(hear, ANY[choice]) for choice in rng.integers(0, len(ANY), 40)]
    assert 200 < sum(outcomes) < 900


def is_answered(hear, message):
    try:
        hear(message)
    except FedSimError:
        return False
    return True


# --- how much it answers -----------------------------------------------------------------------------------------


def trained(hear, value, steps=STEPS):
    """Begin, and take steps with gradients of this value; gives the answers."""
    hear(Begin(STEPS))
    answers = []
    for step in range(steps):
        answers.append(hear(Ask(step, rows=NUMBERS)).values)
        hear(gradients(step, value=value))
    return answers


def test_a_training_that_resumes_asks_nothing_new_however_often(tmp_path):
    first = trained(Heard(tmp_path), 1.0)
    for _ in range(5):  # a new process every time
        assert all(map(np.array_equal, first, trained(Heard(tmp_path), 1.0)))


def test_trainings_with_other_gradients_end_at_the_limit_through_all_restarts(tmp_path):
    trained(Heard(tmp_path), 1.0)
    trained(Heard(tmp_path), -1.0, steps=3)  # the first step is the same: weights have not changed
    with raises(PeerError, "over-limit"):
        trained(Heard(tmp_path), [1, -1, 1, -1], steps=2)
    trained(Heard(tmp_path), 1.0)


def test_questions_without_gradients_are_limited_but_the_same_may_be_asked_again(hear):
    hear(Begin(STEPS))
    asked = [NUMBERS[[0]], NUMBERS[[1]], NUMBERS[[2]], *(np.array([row, 8], np.int32) for row in range(6))]
    for rows in asked + asked:
        hear(Infer(rows=rows, sealed=NO_BYTES))
    with raises(PeerError, "over-limit"):
        hear(Infer(rows=NUMBERS, sealed=NO_BYTES))


def trains_again_before_every_prediction(hear):
    """A primary that predicts after every single step of training, with weights of its choice."""
    saved = {}
    hear.role.finish = lambda party: saved.update(party.model.network.state_dict())
    hear.role.load_trained = lambda: restore_secondary("rentals", FEATURES, BELOW, saved)

    def predict_with_other_weights(seed, rows, sealed=NO_BYTES):
        step = Gradients(0, values=np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32))
        hear(Begin(STEPS), Ask(0, rows=NUMBERS), step, Finish(), Meet(True))
        return hear(Infer(rows=rows, sealed=sealed)).values

    return predict_with_other_weights


def test_questions_after_the_end_of_training_count_like_those_in_it(hear):
    predict, answers = trains_again_before_every_prediction(hear), []
    with raises(PeerError, "over-limit"):
        for seed in range(99):
            answers.append(predict(seed, NUMBERS).tobytes())
    assert len(set(answers)) == LIMITS.inferences
    assert predict(0, NUMBERS).tobytes() == answers[0]  # the same may be asked again


def test_new_records_are_not_answered_by_any_number_of_weights(hear):
    predict, answers = trains_again_before_every_prediction(hear), []
    with raises(PeerError, "over-limit"):
        for seed in range(99):
            answers.append(predict(seed, NUMBERS[:1], sealed_links(1)).tobytes())
    assert len(set(answers)) == LIMITS.inferences


def test_predictions_of_other_new_records_by_the_same_weights_cost_new_records_alone(tmp_path):
    hear = Heard(tmp_path, limits=replace(LIMITS, new_records=99)).meet()
    for record in range(99):
        predicted(hear, [0, 1], sealed_links(record))
    for row in range(8):  # one question was these weights
        predicted(hear, [row], NO_BYTES)
    with raises(PeerError, "over-limit"):
        predicted(hear, [8], NO_BYTES)


def test_a_study_gives_no_new_count_to_predictions(hear):
    hear(Meet(True))
    for row in range(9):
        predicted(hear, [row], NO_BYTES)
    hear(Begin(STEPS, study=True), Meet(True))
    with raises(PeerError, "over-limit"):
        predicted(hear, [0, 1], NO_BYTES)


@pytest.mark.parametrize("before", [[], [Meet(True)]])
def test_a_question_without_gradients_has_a_limited_number_of_rows(tmp_path, monkeypatch, before):
    monkeypatch.setattr("fedsim.protocol.roles.secondary_role.INFERENCE_ROWS", 3)
    hear = Heard(tmp_path)
    hear(Begin(STEPS), *before)
    with raises(PeerError, "bad-rows"):
        hear(Infer(rows=NUMBERS, sealed=NO_BYTES))


def test_a_study_has_a_count_of_its_own(hear):
    trained(hear, 1.0)
    for seed in range(3):
        hear(Begin(STEPS, study=True, seed=seed), Ask(0, rows=NUMBERS), gradients(0, value=seed))


def test_a_step_has_no_more_rows_than_a_batch_has_links(hear):
    with raises(PeerError, "bad-rows"):
        hear(Begin(STEPS), Ask(0, rows=np.arange(9, dtype=np.int32)))


@pytest.mark.parametrize("step", [-1, 0, 2, STEPS, 2**62])
def test_a_step_that_came_before_or_comes_after_the_last_is_refused(hear, step):
    hear(Begin(STEPS), Ask(2, rows=NUMBERS), gradients(2))  # steps may be left out
    with raises(PeerError, "bad-step"):
        hear(Ask(step, rows=NUMBERS))


def test_a_row_that_is_not_linked_to_the_primary_is_refused(tmp_path):
    rows = np.where(np.arange(9) == 4, -1, np.arange(9)).astype(np.int32)
    hear = Heard(tmp_path, order=RowMapping(rows, KEY, 3))
    hear(Begin(STEPS))
    for message in (Ask(0, rows=NUMBERS), Infer(rows=NUMBERS, sealed=NO_BYTES)):
        with raises(PeerError, "bad-rows"):
            hear(message)
    hear(Ask(0, rows=NUMBERS[[0, 1, 3]]))


# --- new records -------------------------------------------------------------------------------------------------


def sealed_links(*records):
    """Links of new records, each known by a hash and leading to rows 4 and 2, as the coordinator seals them."""
    n = 2 * len(records)
    rows = np.tile(np.array([4, 2], np.int32), len(records))
    return seal_links(KEY, LinkedRows(np.arange(n, dtype=np.int32), rows, np.array(records, np.uint64)))


def predicted(hear, numbers, sealed):
    return hear(Infer(rows=np.array(numbers, np.int32), sealed=sealed)).values


def test_the_owner_is_told_which_new_record_uses_each_row_and_may_refuse(tmp_path):
    hear, reported = Heard(tmp_path), []
    hear.role.on_uses = lambda rows, uses: reported.extend(zip(rows.tolist(), uses.tolist(), strict=True))
    hear.meet()
    predicted(hear, [0, 1], sealed_links(901, 902))
    assert reported == [(4, 901), (2, 901), (4, 902), (2, 902)]
    refusal = PolicyError("used too often", code="over-budget")

    def refuse(rows, uses):
        raise refusal

    hear.role.on_uses = refuse
    with raises(PeerError, "over-budget"):
        predicted(hear, [0, 1], sealed_links(903))


def test_new_records_are_limited_and_only_for_predictions(tmp_path):
    hear = Heard(tmp_path)
    with raises(PeerError, "new-in-training"):
        hear(Begin(STEPS), Infer(rows=NUMBERS[:1], sealed=sealed_links(1)))
    hear(Meet(True))
    for records in ((1, 2), (2, 3), (3, 1)):
        assert predicted(hear, [0, 3], sealed_links(*records)).shape == (2, 4)
    with raises(PeerError, "over-limit"):
        predicted(Heard(tmp_path).meet(), [0], sealed_links(4))


def test_a_number_that_the_coordinator_did_not_seal_is_refused(hear):
    hear(Meet(True))
    with raises(PeerError, "bad-rows"):
        predicted(hear, [2], sealed_links(1))
    with raises(PeerError, "bad-seal"):
        predicted(hear, [0], sealed_links(1)[::-1].copy())


# --- over a line, as the primary sees it -------------------------------------------------------------------------


@contextmanager
def remote(folder, form="float32", above=CPU, **changes):
    """A secondary elsewhere, and the thread in which it talks."""
    with connected(CITY, RENTALS) as (here, there):
        talking = started(below_the_cut(folder, form, **changes).serve, there)
        yield RemoteSecondary(here, wire_format(form), device=above)
        here.send(Farewell())
        joined(talking)


def a_few_steps(party):
    party.begin(STEPS)
    replies = []
    for step in range(3):
        party.ask(ROWS, step)
        replies.append(party.activations(ROWS, step))
        party.descend(torch.ones_like(replies[-1]) * (step + 1), step)
    party.keep_best()
    party.save(3)
    party.ask(ROWS, None)
    replies.append(party.infer(ROWS))
    replies.append(party.activations(ROWS, 3))
    party.descend(replies[-1], 3)
    replies.append(party.infer(ROWS))
    party.use_best()
    replies.append(party.infer(ROWS))
    party.restore(3)
    party.forget_before(3)
    return [*replies, party.infer(ROWS)]


def test_a_secondary_elsewhere_learns_bit_for_bit_as_one_here(tmp_path):
    with remote(tmp_path / "there") as there:
        answers = a_few_steps(there)
        there.finish()
    assert all(map(torch.equal, answers, a_few_steps(local(tmp_path / "here"))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("above", "below"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_parties_on_a_card_and_on_a_cpu_train_as_one_process_does(tmp_path, above, below):
    """Dropout is drawn on the device of the primary, so both trainings use the same one above the cut."""
    data, config = small_secondaries()[0], replace(encoded_config(epochs=3), device=above)
    above, below = torch.device(above), torch.device(below)

    def train_above(holder):
        lists = [NeighbourList(Links(data.partner, data.similarity), (holder,))]
        result = train_with(small_primary(), lists, SPLIT, config)
        return result.predictions["test"], weight_curves(result.model)[0].weight

    limits = replace(LIMITS, total_steps=99, steps=99, inferences=99, rows_per_step=9)
    with remote(tmp_path, above=above, device=below, limits=limits) as there:
        apart = train_above(there)
    for one, other in zip(apart, train_above(local(None, device=above)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize("form", ["float16", "bfloat16", "int8"])
def test_at_half_precision_or_less_it_learns_nearly_the_same(tmp_path, form):
    with remote(tmp_path / "there", form) as there:
        answers = a_few_steps(there)
    for one, other in zip(answers, a_few_steps(local(tmp_path / "here")), strict=True):
        assert torch.allclose(one, other, atol=0.05)


def test_a_checkpoint_that_cannot_be_read_is_told_as_such(tmp_path):
    with remote(tmp_path) as there:
        there.begin(STEPS)
        with pytest.raises(DamagedCheckpoint, match="secondary 'rentals': its checkpoint of step 2 cannot be read"):
            there.restore(2)


# --- its rows under pseudonyms -----------------------------------------------------------------------------------

TABLE = EncodedTable(np.arange(12, dtype=np.uint8).reshape(4, 3), 24, "ab" * 32)


TERMS = LinkageConfig("hamming", 2)


def order_from(*answers, terms=TERMS):
    """What comes of a coordinator that answers with these frames."""
    session = session_of(RENTALS, NOTARY)
    read_all(session, *answers)
    return fetch_row_mapping(session, TABLE, "digest", "", terms)


def row_order(order, n_trained=1, seal=KEY):
    return RowOrder("rentals", n_trained, order=np.array(order, np.int32), seal=seal)


def answered(answer, terms=TERMS):
    return order_from(frame_of(Want(False), 1, reply_to=1), frame_of(answer, 2, reply_to=1), terms=terms)


def test_the_order_of_its_rows_comes_for_the_identifiers_it_sent():
    answer = row_order([2, -1, 3, 1])
    found = order_from(frame_of(Want(True), 1, reply_to=1), frame_of(answer, 2, reply_to=2))
    assert found.rows.tolist() == [2, -1, 3, 1]
    assert found.linked.tolist() == [1, 2, 3]
    assert found.rows.flags.writeable


def test_the_order_in_hand_may_still_hold():
    assert order_from(frame_of(Want(False), 1, reply_to=1), frame_of(Unchanged(), 2, reply_to=1)) is None


def test_identifiers_go_out_only_where_they_are_wanted():
    for wanted, kinds in ((True, [Offer, Candidates]), (False, [Offer])):
        session = session_of(RENTALS, NOTARY)
        read_all(session, frame_of(Want(wanted), 1, reply_to=1), frame_of(Unchanged(), 2, reply_to=1 + wanted))
        fetch_row_mapping(session, TABLE, "digest", "", TERMS)
        assert [type(message) for _, message, _ in session._outbox] == kinds


UNFIT_ORDERS = {
    "too short": row_order([0, 1, 2]),
    "too long": row_order([0, 1, 2, 3, -1]),
    "a row twice": row_order([0, 0, 1, 2]),
    "a row out of range": row_order([1, 2, 3, 4]),
    "a row below none": row_order([-2, 0, 1, 2]),
    "empty": row_order([]),
    "fewer rows than k": row_order([0, -1, -1, -1]),
    "no training records": row_order([0, 1, 2, 3], n_trained=0),
    "no key": row_order([0, 1, 2, 3], seal=NO_BYTES),
}


@pytest.mark.parametrize("what", UNFIT_ORDERS)
def test_an_order_that_the_terms_do_not_allow_is_refused(what):
    with raises(PeerError, "bad-row-order"):
        answered(UNFIT_ORDERS[what])


def test_another_answer_than_an_order_is_refused():
    with raises(PeerError, "bad-row-order"):
        order_from(frame_of(Want(False), 1, reply_to=1), frame_of(Want(False), 2, reply_to=1))
