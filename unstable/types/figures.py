"""Types of numbers in records, with bounds, so that reading a damaged number fails."""

from typing import Annotated

from msgspec import Meta

MOST = 1e100
"""Exclusive bound of all figures of a run; sums and squares of smaller figures are finite."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
SeatNumber = Annotated[int, Meta(ge=0, lt=1000)]
Figure = Annotated[float, Meta(gt=-MOST, lt=MOST)]
