"""Two parties in one process: links equal a plain count of tokens, and what each side may and may not learn."""

import math
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FedSimError, FileError, FingerprintError, InputError, PeerError, PolicyError, WireError
from fedsim.linkage.direct import CodeTokens, NumberTokens, PlaceTokens, TextTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.encrypted_table import EncryptedTable, build_table
from fedsim.linkage.direct.exchange import TokenEvaluator, TokenValues, evaluate_tokens, open_rows
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.token_kinds import DELETED, NO_SHARE, SAMPLED, WHOLE
from fedsim.linkage.direct.token_links import NOBODY
from fedsim.linkage.encoding.column_encodings import IdentifierColumn

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TEXT = TextTokens(samples=6, words=6, deletions=8, cap=3)
NAMES = TokenSchema((TokenField(("name",), TEXT),))
WORDS = ("belgor", "marine", "tonkit", "foods", "ltd", "oku", "harbour", "x1", "gmbh", "norvex")
KEY = oprf.SecretKey.derive(bytes(32), b"tests")


def ask_key(key=KEY):
    return lambda blinded: oprf.map_batches(key.evaluate_blinded, blinded)


def random_names(rng, count):
    return [" ".join(rng.choice(WORDS, size=rng.integers(0, 4), replace=False)) for _ in range(count)]


def opened_by(table, ours, ask=None, values=None):
    values = TokenValues(table.schema, table.public) if values is None else values
    return open_rows(table, table.schema.query_tokens(ours), values, ask or ask_key())


def linked(schema, theirs, ours, k=3, min_rows=1):
    """Link two tables in this process; the vector of a row is its number."""
    vectors = np.arange(len(next(iter(theirs.values()))), dtype=np.float32)[:, np.newaxis]
    table = build_table(schema, theirs, vectors, KEY, min_rows=min_rows)
    found = opened_by(table, ours)
    training = np.ones(found.pairs.cells.shape[0], np.bool_)
    return found, found.pairs.best(k, found.pairs.fit_rivals(training), found.among)


def row_numbers(found):
    """Return the row behind every opened pseudonym."""
    return dict(zip(found.rows.tolist(), found.vectors[:, 0].astype(int).tolist(), strict=True))


def tokens_by_record(kind, names):
    found = kind.row_tokens([IdentifierColumn(names, "name")])
    listed = defaultdict(dict)
    for record, token, part, share in zip(
        found.record.tolist(), found.token.tolist(), found.part.tolist(), found.share.tolist(), strict=True
    ):
        listed[record][token] = part, share
    return listed


def plain_links(theirs, ours, kind):
    """Count shared tokens in the clear: {(record, row): score}, and the rows that could be opened."""
    rows, records = tokens_by_record(kind, theirs), tokens_by_record(kind, ours)
    lists = defaultdict(list)
    for row, tokens in rows.items():
        for token, (part, share) in tokens.items():
            lists[token].append((row, part, share))
    lists = {t: of for t, of in lists.items() if len(of) <= (50 if of[0][1] == WHOLE else kind.cap)}
    vote, unit = kind.samples / 20, math.log(1 + len(theirs))
    score, shares = Counter(), defaultdict(set)
    for record, tokens in records.items():
        deleted = defaultdict(list)
        for token, (part, _) in tokens.items():
            for row, _, share in lists.get(token, ()):
                rarity = math.log((1 + len(theirs)) / len(lists[token]))
                shares[row] |= {share} - {NO_SHARE} if share else {1, 2}
                if part == DELETED:
                    deleted[row].append(rarity)
                else:
                    score[record, row] += rarity * (1 if part == SAMPLED else vote)
        for row, votes in deleted.items():
            score[record, row] += vote * sum(votes) / len(votes)
        parts = Counter(part for part, _ in tokens.values())
        most = parts[SAMPLED] + vote * (sum(parts.values()) - parts[SAMPLED] - parts[DELETED] + bool(parts[DELETED]))
        for row in range(len(theirs)):
            if (record, row) in score:
                score[record, row] /= most * unit
    return score, {row for row, of in shares.items() if len(of) >= 2}


@pytest.mark.parametrize("seed", range(4))
def test_links_equal_a_plain_count_of_tokens(seed):
    rng = np.random.default_rng(seed)
    theirs, ours = random_names(rng, 30), random_names(rng, 25)
    found, links = linked(NAMES, {"name": theirs}, {"name": ours}, k=30)
    row_of = row_numbers(found)
    score, opened = plain_links(theirs, ours, TEXT)
    cells = [frozenset(tokens_by_record(TEXT, [name])[0]) for name in ours]

    def rivals(record, row):
        """Return the row's mean similarity to the three other distinct records that resemble it most."""
        others = {cells[other]: value for (other, near), value in score.items() if near == row}
        best = sorted(value for cell, value in others.items() if cell != cells[record])[-3:]
        return max(sum(best) / 3, 0.01)

    expected = {
        (record, row): value / math.sqrt(rivals(record, row)) for (record, row), value in score.items() if row in opened
    }
    actual = {
        (record, row_of[partner]): links.similarity[record, place, 0]
        for record in range(25)
        for place, partner in enumerate(links.partner[record].tolist())
        if partner != NOBODY
    }
    assert set(row_of.values()) == opened
    assert actual == pytest.approx(expected)
    assert len(found.pairs.row) == len(score)
    assert (np.diff(links.distance, axis=1) >= 0).all()


def test_equal_distances_are_in_order_of_pseudonyms_and_missing_partners_are_nobody():
    codes = TokenSchema((TokenField(("code",), CodeTokens()),))
    _, links = linked(codes, {"code": ["a"] * 5 + ["b"]}, {"code": ["a", "c"]}, k=7)
    partner = links.partner
    assert (np.diff(partner[0, :5]) > 0).all()
    assert partner[0, 5:].tolist() == [NOBODY] * 2
    assert partner[1].tolist() == [NOBODY] * 7
    assert links.distance[1].tolist() == [1.0] * 7


def test_one_common_word_opens_no_row_and_two_do():
    theirs = {"name": ["Belgor Marine", "Tonkit Foods"]}
    for ours, rows in ((["Oku Marine"], 0), (["Marine"], 0), (["Belgor Marine Oku"], 1), (["Marine Belgor"], 1)):
        found, _ = linked(NAMES, theirs, {"name": ours})
        assert len(found.rows) == rows


def test_tokens_of_too_many_or_too_few_rows_open_nothing():
    codes = TokenSchema((TokenField(("code",), CodeTokens(cap=3)),))
    theirs = {"code": ["a"] * 4 + ["b"] * 3 + ["c"]}
    found, _ = linked(codes, theirs, {"code": ["a", "b", "c"]}, min_rows=2)
    assert found.pairs.record.tolist() == [1, 1, 1]


def test_several_fields_have_a_similarity_each_and_records_without_a_cell_are_compared_by_the_others():
    schema = TokenSchema((TokenField(("code",), CodeTokens(), 3.0), TokenField(("age",), NumberTokens(width=1.0))))
    theirs = {"code": ["a", "b"], "age": [30.0, 40.0]}
    _, links = linked(schema, theirs, {"code": ["a", None], "age": [30.5, 30.5]}, k=1)
    np.testing.assert_array_equal(links.similarity[:, 0], [[1.0, 1.0], [np.nan, 1.0]])
    assert links.distance[:, 0].tolist() == [0.0, 0.0]


def test_the_nearest_places_are_found_up_to_the_finest_cell():
    rng = np.random.default_rng(0)
    theirs, ours = rng.normal([1.3, 103.8], 0.02, (400, 2)), rng.normal([1.3, 103.8], 0.02, (60, 2))
    places = TokenSchema((TokenField(("lat", "lon"), PlaceTokens(metres=10, cap=16)),))
    tables = [{"lat": of[:, 0], "lon": of[:, 1]} for of in (theirs, ours)]
    found, links = linked(places, *tables, k=5)
    row_of = row_numbers(found)
    metres = (ours[:, np.newaxis] - theirs) * [1, math.cos(math.radians(1.3))]
    exact = np.argsort(np.hypot(*np.moveaxis(metres, -1, 0)), axis=1)[:, :5].tolist()
    lists = [{row_of.get(partner) for partner in partners} for partners in links.partner.tolist()]
    assert np.mean([len(own & set(near)) for own, near in zip(lists, exact, strict=True)]) > 4.7


# What is kept, counted and refused


@pytest.fixture(name="owner")
def key_owner(tmp_path):
    keys = KeyStore(tmp_path / "keys")
    return keys, keys.create("firms", NOW)


def test_a_second_job_on_the_same_tables_asks_for_nothing(owner, tmp_path):
    keys, key = owner
    table = build_table(NAMES, {"name": ["Belgor Marine", "Tonkit"]}, np.zeros((2, 1), np.float32), key)
    evaluator = TokenEvaluator(keys, "firms", max_tokens=1000)
    for _ in range(2):
        values = TokenValues(NAMES, key.public, tmp_path / "values")
        found = opened_by(table, {"name": ["Belgor Marine"]}, lambda sent: evaluator.evaluate("us", sent), values)
        evaluated = keys.record("firms").evaluated["us"]
        assert len(found.rows) == 1
    queries = NAMES.query_tokens({"name": ["Belgor Marine"]})
    assert evaluated == evaluate_tokens(NAMES, queries, key.public, TokenValues(NAMES, key.public), ask_key(key))


def test_tokens_are_counted_before_they_are_evaluated_and_over_keys_and_restarts(owner):
    keys, _ = owner
    evaluator = TokenEvaluator(keys, "firms", max_tokens=10)
    evaluator.evaluate("us", oprf.random_elements(6))
    keys.rotate("firms", NOW)
    again = TokenEvaluator(KeyStore(keys.folder), "firms", max_tokens=10)
    with raises(PolicyError, "over-budget") as caught:
        again.evaluate("us", oprf.random_elements(5))
    assert caught.value.left == 4
    assert len(again.evaluate("them", oprf.random_elements(10))[0].elements) == 10


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.linkage.direct.oprf.ROUND_TOKENS", 32)
    table = build_table(NAMES, {"name": ["Belgor Marine"]}, np.zeros((1, 1), np.float32), KEY)
    ours, rounds = {"name": ["Belgor Marine", "Tonkit Foods", "Norvex Harbour"]}, []

    def ask(blinded):
        if len(rounds) == 1:
            raise PeerError("away", code="away")
        rounds.append(len(blinded))
        return ask_key()(blinded)

    values = TokenValues(NAMES, KEY.public, tmp_path / "values")
    with raises(PeerError, "away"):
        opened_by(table, ours, ask, values)
    rest, whole = [], []
    resumed = opened_by(table, ours, counted(rest), TokenValues(NAMES, KEY.public, tmp_path / "values"))
    again = opened_by(table, ours, counted(whole))
    assert sum(rest) < sum(whole)
    assert np.array_equal(resumed.pairs.similarity, again.pairs.similarity)


def test_progress_moves_from_nothing_to_all_tokens(monkeypatch):
    monkeypatch.setattr("fedsim.linkage.direct.oprf.ROUND_TOKENS", 32)
    steps = {"table": [], "tokens": []}
    names, values = {"name": ["Belgor Marine", "Tonkit Foods"]}, TokenValues(NAMES, KEY.public)
    moves = {name: lambda done, total, seen=seen: seen.append((done, total)) for name, seen in steps.items()}
    build_table(NAMES, names, np.zeros((2, 1), np.float32), KEY, progress=moves["table"])
    for _ in range(2):  # the second time, nothing is evaluated
        evaluate_tokens(NAMES, NAMES.query_tokens(names), KEY.public, values, ask_key(), moves["tokens"])
    for seen in steps.values():
        done, totals = zip(*seen, strict=True)
        assert done == tuple(sorted(done))
        assert (done[0], done[-1], len(set(totals))) == (0, totals[0], 1)


def counted(sizes):
    def ask(blinded):
        sizes.append(len(blinded))
        return ask_key()(blinded)

    return ask


def test_a_destroyed_key_evaluates_nothing_and_its_record_remains(owner):
    keys, key = owner
    record = keys.destroy("firms", NOW)
    assert (record.keys[0].public, record.keys[0].destroyed) == (key.public.hex(), NOW.isoformat())
    assert key.scalar.hex() not in (keys.folder / "firms.key.json").read_text()
    with raises(FileError, "key-destroyed"):
        TokenEvaluator(keys, "firms", 10).evaluate("us", oprf.random_elements(1))
    assert keys.create("firms", NOW).public != key.public


def test_keys_are_private_and_refused_if_their_file_was_changed(owner):
    keys, _ = owner
    path = keys.folder / "firms.key.json"
    assert path.stat().st_mode & 0o077 == 0
    with raises(FileError, "already-exists"):
        keys.create("firms", NOW)
    with raises(FileError, "no-key"):
        keys.key("others")
    with raises(FileError, "bad-path"):
        keys.create("../firms", NOW)
    path.write_text(path.read_text().replace('"format"', '"form"'))
    with raises(FileError, "bad-key-file"):
        keys.key("firms")


def test_the_secondary_receives_fresh_random_points_as_many_as_a_round_number():
    table = build_table(NAMES, {"name": ["Belgor"]}, np.zeros((1, 1), np.float32), KEY)
    received = []

    def ask(blinded):
        received.append(blinded)
        return ask_key()(blinded)

    for _ in range(2):
        opened_by(table, {"name": ["Belgor Marine Oku"]}, ask)
    first, second = received
    assert len(first) == len(second)
    assert len(first) % 2 == 0
    assert not set(first) & set(second)
    assert first == sorted(first)


def test_evaluations_with_another_key_open_nothing():
    table = build_table(NAMES, {"name": ["Belgor"]}, np.zeros((1, 1), np.float32), KEY)
    values = TokenValues(NAMES, KEY.public)
    with raises(WireError, "bad-proof"):
        opened_by(table, {"name": ["Belgor"]}, ask_key(oprf.SecretKey.generate()), values)
    with raises(PeerError, "bad-evaluation"):
        opened_by(table, {"name": ["Belgor"]}, lambda blinded: [], values)
    assert len(values.missing(0, np.array([1], np.uint64))) == 1


def test_the_table_is_the_same_again_and_another_content_shares_no_entry():
    vectors = np.ones((3, 2), np.float32)
    names = {"name": ["Belgor Marine", "Tonkit Foods", "Oku"]}
    first, again = (build_table(NAMES, names, vectors, KEY) for _ in range(2))
    other = build_table(NAMES, names, 2 * vectors, KEY)
    assert np.array_equal(first.entries[0], again.entries[0])
    assert not set(first.tags[0].tolist()) & set(other.tags[0].tolist())
    assert len(set(map(bytes, first.vectors))) == 3


def test_the_table_shows_neither_names_nor_values_nor_lengths_of_lists():
    lengths = []
    for codes in (["a", "b", "c", "d"], ["a", "a", "b", "b"]):
        schema = TokenSchema((TokenField(("code",), CodeTokens()),))
        lengths.append(build_table(schema, {"code": codes}, np.zeros((4, 1), np.float32), KEY).entries[0].shape)
    assert lengths[0] == lengths[1]


def test_a_saved_table_is_read_back_and_only_for_its_schema(tmp_path):
    table = build_table(NAMES, {"name": ["Belgor Marine", "Oku"]}, np.ones((2, 3), np.float32), KEY)
    table.save(tmp_path / "table")
    loaded = EncryptedTable.load(tmp_path / "table", NAMES)
    ours = {"name": ["Belgor Marine"]}
    found = opened_by(loaded, ours)
    assert found.vectors.tolist() == [[1.0, 1.0, 1.0]]
    with raises(FingerprintError, "schemas-differ"):
        EncryptedTable.load(tmp_path / "table", TokenSchema((TokenField(("name",), TextTokens()),)))


def test_values_of_another_key_are_refused(tmp_path):
    values = TokenValues(NAMES, KEY.public, tmp_path / "values")
    values.add(np.array([0]), np.array([7], np.uint64), [bytes(64)])
    with raises(FileError, "other-key"):
        TokenValues(NAMES, oprf.SecretKey.generate().public, tmp_path / "values")
    with raises(FileError, "other-key"):
        TokenValues(TokenSchema((TokenField(("n",), TEXT),)), KEY.public, tmp_path / "values")


def test_two_thousand_changed_files_give_only_errors_of_ours(tmp_path):
    table = build_table(NAMES, {"name": ["Belgor Marine", "Oku"]}, np.ones((2, 3), np.float32), KEY)
    path = tmp_path / "table"
    table.save(path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for number in range(2000):
        changed = bytearray(content)
        at = int(rng.integers(len(content) if number % 2 else 600))
        if number % 3:
            changed[at] ^= 1 << int(rng.integers(8))
        else:
            del changed[at : at + int(rng.integers(1, 50))]
        path.write_bytes(changed)
        with pytest.raises(FedSimError):
            EncryptedTable.load(path, NAMES)


def test_a_changed_entry_with_a_valid_digest_is_as_if_it_were_not_listed(tmp_path):
    table = build_table(NAMES, {"name": ["Belgor Marine", "Oku"]}, np.ones((2, 3), np.float32), KEY)
    table.entries[0][:] ^= 1
    table.save(tmp_path / "table")
    loaded = EncryptedTable.load(tmp_path / "table", NAMES)
    found = opened_by(loaded, {"name": ["Belgor Marine"]})
    assert len(found.pairs.row) == 0


def test_a_changed_vector_with_a_valid_digest_is_left_out_without_an_error(tmp_path):
    table = build_table(NAMES, {"name": ["Belgor Marine", "Oku Foods"]}, np.ones((2, 3), np.float32), KEY)
    table.vectors[0] ^= 1
    table.save(tmp_path / "table")
    loaded = EncryptedTable.load(tmp_path / "table", NAMES)
    ours = {"name": ["Belgor Marine", "Oku Foods"]}
    found = opened_by(loaded, ours)
    assert found.rows.tolist() == [1]
    assert found.vectors.tolist() == [[1.0, 1.0, 1.0]]


def test_vectors_must_be_as_many_as_rows():
    with raises(InputError, "vector-count"):
        build_table(NAMES, {"name": ["Belgor"]}, np.zeros((2, 1), np.float32), KEY)


SIMILAR = ("belgor", "gorbel", "belgo", "elgor", "marin", "marie", "mari", "trading", "shipping")


@pytest.mark.parametrize("seed", range(3))
def test_no_single_word_of_a_row_opens_it_even_if_its_words_resemble_each_other(seed):
    rng = np.random.default_rng(seed)
    rows = [list(rng.choice(SIMILAR, size=3, replace=False)) for _ in range(4)]
    schema = TokenSchema((TokenField(("name",), TextTokens(samples=40)),))
    for row in rows:
        table = build_table(schema, {"name": [" ".join(row)]}, np.zeros((1, 1), np.float32), KEY)
        for word in row:
            assert len(opened_by(table, {"name": [word]}).rows) == 0
        assert len(opened_by(table, {"name": [" ".join(row[:2])]}).rows) == 1


# What a deviating primary, a thief or a damaged disk cannot do


def test_a_request_to_an_earlier_key_is_counted_again(owner):
    keys, _ = owner
    evaluator, request = TokenEvaluator(keys, "firms", max_tokens=10), oprf.random_elements(6)
    assert evaluator.evaluate("us", request)
    assert evaluator.evaluate("us", request)
    keys.rotate("firms", NOW)
    with raises(PolicyError, "over-budget", left=4):
        evaluator.evaluate("us", request)


def test_a_key_that_is_destroyed_while_a_request_is_counted_evaluates_nothing(owner, monkeypatch):
    keys, _ = owner
    charge = KeyStore.charge

    def destroyed_meanwhile(store, *arguments):
        charge(store, *arguments)
        store.destroy("firms", NOW)

    monkeypatch.setattr(KeyStore, "charge", destroyed_meanwhile)
    with raises(FileError, "key-destroyed"):
        TokenEvaluator(keys, "firms", 10).evaluate("us", oprf.random_elements(1))


def test_no_file_of_a_destroyed_key_has_its_secret_even_if_a_process_was_killed_while_writing(owner):
    keys, key = owner
    keys.charge("firms", "us", 1, 10)
    (keys.folder / ".fedsim-0123456789ab.part").write_text(key.scalar.hex())
    keys.destroy("firms", NOW)
    assert not [path for path in keys.folder.iterdir() if key.scalar.hex() in path.read_text()]


def test_ten_thousand_changed_key_files_change_no_count(owner):
    keys, _ = owner
    keys.charge("firms", "us", 5, 100, "ab")
    path, before, rng = keys.folder / "firms.key.json", keys.record("firms"), np.random.default_rng(0)
    content = path.read_bytes()
    for number in range(10_000):
        changed, at = bytearray(content), int(rng.integers(len(content)))
        if number % 2:
            changed[at] ^= 1 << int(rng.integers(8))
        else:
            del changed[at : at + int(rng.integers(1, 50))]
        path.write_bytes(changed)
        with suppress(FileError):
            assert keys.record("firms") == before


@pytest.mark.parametrize("columns", [("name", "name"), ("name", "town")])
def test_one_common_word_opens_nothing_even_if_two_fields_have_it(columns):
    schema = TokenSchema(tuple(TokenField((name,), TextTokens(samples=9 + at)) for at, name in enumerate(columns)))
    theirs = {"name": ["Marine Belgor", "Oku Foods"], "town": ["Marine Norvex", "Port Zed"]}
    found, _ = linked(schema, theirs, {"name": ["Marine"], "town": ["Marine"]})
    assert len(found.pairs.row)
    assert len(found.rows) == 0
    assert len(linked(schema, theirs, {"name": ["Marine Belgor"], "town": ["Tonkit"]})[0].rows) == 1


@pytest.mark.parametrize(("name", "rows"), [("Safari Oku", 0), ("Marin", 1), ("Marina Foods", 1), ("Marine Oku", 1)])
def test_a_row_of_one_word_opens_with_the_word_or_a_similar_one_and_not_with_three_letters(name, rows):
    schema = TokenSchema((TokenField(("name",), TextTokens()),))
    assert len(linked(schema, {"name": ["Marine", "Tonkit Norvex"]}, {"name": [name]})[0].rows) == rows


def test_a_list_that_is_longer_than_the_schema_permits_is_not_read_to_its_end():
    lenient, strict = (TokenSchema((TokenField(("code",), CodeTokens(cap=cap)),)) for cap in (1000, 60))
    table = build_table(lenient, {"code": ["a"] * 500}, np.zeros((500, 1), np.float32), KEY)
    values = KEY.evaluate(lenient.inputs(0, CodeTokens().row_tokens([IdentifierColumn(["a"], "code")]).token.tolist()))
    assert len(table.open(0, values).row) == 500
    assert len(replace(table, schema=strict).open(0, values).row) == 60


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_vector_that_is_not_of_numbers_is_left_out_without_an_error(value):
    table = build_table(NAMES, {"name": ["Belgor Marine", "Oku Foods"]}, np.float32([[value], [1.0]]), KEY)
    assert opened_by(table, {"name": ["Belgor Marine", "Oku Foods"]}).vectors.tolist() == [[1.0]]


def test_the_secondary_cannot_count_the_new_tokens_of_one_record():
    schema, sizes = TokenSchema((TokenField(("code",), CodeTokens()),)), []
    table = build_table(schema, {"code": ["a"]}, np.zeros((1, 1), np.float32), KEY)
    for codes in (["a"], ["a", "b", "c"]):
        opened_by(table, {"code": codes}, counted(sizes))
    assert sizes == [16, 16]
