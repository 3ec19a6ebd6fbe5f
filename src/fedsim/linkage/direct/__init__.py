"""Direct linking: two parties find similar records by oblivious tokens, without a third party or a shared key."""

from fedsim.linkage.direct.token_kinds import CodeTokens, DateTokens, NumberTokens, PlaceTokens, TextTokens
from fedsim.linkage.direct.token_schema import TokenField, TokenSchema

__all__ = ["CodeTokens", "DateTokens", "NumberTokens", "PlaceTokens", "TextTokens", "TokenField", "TokenSchema"]
