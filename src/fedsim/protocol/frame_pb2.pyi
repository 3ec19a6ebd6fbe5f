from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class Header(_message.Message):
    __slots__ = ("acknowledged", "arrays", "facts", "kind", "protocol", "reply_to", "sequence", "session")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Fact
        def __init__(self, key: str | None = ..., value: Fact | _Mapping | None = ...) -> None: ...

    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    session: bytes
    sequence: int
    acknowledged: int
    reply_to: int
    kind: str
    facts: _containers.MessageMap[str, Fact]
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    def __init__(
        self,
        protocol: int | None = ...,
        session: bytes | None = ...,
        sequence: int | None = ...,
        acknowledged: int | None = ...,
        reply_to: int | None = ...,
        kind: str | None = ...,
        facts: _Mapping[str, Fact] | None = ...,
        arrays: _Iterable[Array | _Mapping] | None = ...,
    ) -> None: ...

class Fact(_message.Message):
    __slots__ = ("flag", "number", "text", "whole")
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    whole: int
    number: float
    text: str
    flag: bool
    def __init__(
        self, whole: int | None = ..., number: float | None = ..., text: str | None = ..., flag: bool | None = ...
    ) -> None: ...

class Array(_message.Message):
    __slots__ = ("checksum", "dtype", "name", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    checksum: int
    def __init__(
        self,
        name: str | None = ...,
        dtype: str | None = ...,
        shape: _Iterable[int] | None = ...,
        checksum: int | None = ...,
    ) -> None: ...
