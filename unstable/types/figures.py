"""Numbers as records hold them, within bounds, so that a damaged one is found where it is read."""

from typing import Annotated

from msgspec import Meta

MOST = 1e100
"""No figure of a run comes to that; sums and squares of what is less are finite."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
SeatNumber = Annotated[int, Meta(ge=0, lt=1000)]
Figure = Annotated[float, Meta(gt=-MOST, lt=MOST)]
