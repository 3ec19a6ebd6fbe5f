"""Direct linking: two parties find similar records by oblivious tokens, without a third party or a shared key."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim.linkage.direct.token_kinds import CodeTokens, DateTokens, NumberTokens, PlaceTokens, TextTokens
    from fedsim.linkage.direct.token_schema import TokenField, TokenSchema

__all__ = ["CodeTokens", "DateTokens", "NumberTokens", "PlaceTokens", "TextTokens", "TokenField", "TokenSchema"]

# Messages take the sizes of evaluations from here also where polars is not installed.
_HOMES = {
    "token_kinds": ["CodeTokens", "DateTokens", "NumberTokens", "PlaceTokens", "TextTokens"],
    "token_schema": ["TokenField", "TokenSchema"],
}
__getattr__ = lazy_exports(__name__, _HOMES)
