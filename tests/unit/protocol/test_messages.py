"""Messages are values that anybody can list: one class per kind, made of facts and arrays alone."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from fedsim.protocol.messages import EVERYONE, KINDS, Message, Phase, Role
from fedsim.protocol.transport import LAYOUTS
from message_fixtures import SMALL

MESSAGES = pytest.mark.parametrize("kind", KINDS)


def test_every_message_class_has_a_kind_of_its_own():
    assert len(KINDS) == len(Message.__subclasses__())
    assert all(not below.__subclasses__() for below in Message.__subclasses__())


@MESSAGES
def test_a_message_is_made_of_facts_and_arrays_alone(kind):
    layout = LAYOUTS[kind]
    assert {*layout.facts, *layout.arrays} == {entry.name for entry in fields(KINDS[kind])}
    assert all(shape.dtypes and shape.letters for shape in layout.arrays.values())


@MESSAGES
def test_a_message_says_what_it_is_for_and_to_which_part_of_the_job_it_belongs(kind):
    assert KINDS[kind].__doc__
    assert not KINDS[kind].__doc__.startswith(KINDS[kind].__name__ + "(")
    assert KINDS[kind].phase in Phase


@MESSAGES
def test_a_message_cannot_be_changed_and_shows_nothing(kind):
    with pytest.raises(FrozenInstanceError):
        SMALL[kind].kind = "other"
    assert repr(SMALL[kind]) == f"{KINDS[kind].__name__}()"


@MESSAGES
def test_nobody_speaks_to_its_own_role(kind):
    assert KINDS[kind].routes
    assert all(sender is not receiver for sender, receiver in KINDS[kind].routes)
    assert len(set(KINDS[kind].routes)) == len(KINDS[kind].routes)


def test_everyone_means_every_pair_of_roles_but_a_relay_to_which_no_message_goes():
    roles = set(Role) - {Role.RELAY}
    assert set(EVERYONE) == {(sender, receiver) for sender in roles for receiver in roles if sender is not receiver}
