"""The linker without a third party, on names: rows that are not reached, new records, and what a saved linker lacks."""

from functools import partial

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError, FingerprintError
from fedsim.linkage.direct import TextTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.encrypted_table import build_table
from fedsim.linkage.direct.exchange import TokenValues
from fedsim.pipeline.direct_linker import FITTED_FORMAT, DirectLinker, FittedDirect
from fedsim.storage.tensor_file import save_tensors

SCHEMA = TokenSchema((TokenField(("name",), TextTokens(samples=12)),))
THEIRS = ["Belgor Marine Ltd", "Belgor Marine Foods", "Tonkit Harbour", "Oku Norvex"]
OURS = ["Belgor Marine", "Tonkit Harbor Limited", "Zenith", "Belgor Marine"]


@pytest.fixture
def linker():
    key = oprf.SecretKey.generate()
    vectors = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    table = build_table(SCHEMA, {"name": THEIRS}, vectors, key)
    values = TokenValues(SCHEMA, key.public)
    return DirectLinker("register", table, 2, values, partial(oprf.map_batches, key.evaluate_blinded))


def test_records_without_enough_rows_have_the_mean_row_of_no_one_as_partner(linker):
    links = linker.link({"name": OURS}, np.arange(3))
    assert set(linker.vectors_of(links.partner[0])[:, 0].tolist()) == {1.0, 2.0}
    assert links.partner[2].tolist() == [4, 4]
    assert linker.vectors_of(np.array([4])) == pytest.approx(2.0)  # the mean of the three rows that were opened
    assert links.similarity[2, 0, 0] == links.similarity[:, :, 0].min()


def test_equal_records_have_equal_links_in_training_or_not_and_later(linker):
    links = linker.link({"name": OURS}, np.arange(3))
    new = linker.link_new(linker.encode_new({"name": ["Belgor Marine", "Oku Norvex"]}))
    for row, other in ((links, 3), (new, 0)):
        np.testing.assert_array_equal(row.partner[other], links.partner[0])
        np.testing.assert_array_equal(row.similarity[other], links.similarity[0])
    assert linker.vectors_of(new.partner[1, :1]) == 4.0  # a row that no record of training reached


def test_a_table_that_changed_since_the_training_has_other_pseudonyms_and_is_refused(linker, tmp_path):
    linker.link({"name": OURS}, np.arange(3))
    linker.fitted.save(tmp_path / "fitted")
    fitted = FittedDirect.load(tmp_path / "fitted", "register")
    key = oprf.SecretKey.generate()
    table = build_table(SCHEMA, {"name": THEIRS}, np.ones((4, 1), np.float32), key)
    ask = partial(oprf.map_batches, key.evaluate_blinded)
    later = DirectLinker("register", table, 2, TokenValues(SCHEMA, key.public), ask, fitted)
    with raises(FingerprintError, "table-changed"):
        later.link_new(later.encode_new({"name": ["Belgor Marine"]}))


def test_a_saved_linker_that_lacks_something_is_refused(tmp_path):
    save_tensors(tmp_path / "fitted", FITTED_FORMAT, {"scales": np.zeros((1, 2))}, {})
    with raises(FileError, "damaged-model"):
        FittedDirect.load(tmp_path / "fitted", "register")
