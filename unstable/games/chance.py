"""Random state of a game, for generators that the whole process shares.

Envs draw from `random`, and may draw from `numpy.random`, so each call of an env swaps its game's
states in. This module uses these internals of CPython:

- `random._inst`, whose methods are `random`'s functions: there is no other access to it.
- The memory of its state. `random.getstate` would create 625 integers at each swap, thirty times
  the cost of copying the bytes. It is the fallback if the interpreter has another memory layout.
- `_randbelow`, the source of all integers, choices and shuffles, which `all_draws` replaces.

`tests/games/test_chance.py` fails if an interpreter no longer has these.
"""

import contextlib
import ctypes
import hashlib
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.random import MT19937
from numpy.random.bit_generator import ISeedSequence
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from unstable.types.seeds import derive_seed

_FORMAT = "i624I"  # CPython's `_random.Random` after the object's head: index and words
_Bytes = ctypes.c_char * struct.calcsize(_FORMAT)
_shared: Any = random._inst
_answer: Callable[[int], int] | None = None  # replaces draws within `answered`
_noted: list[int] | None = None  # list of the draws within `noted`
T = TypeVar("T")


class Chance:
    """Context manager that gives a game the shared generators; code inside must not await."""

    def __init__(self, seed: int) -> None:
        own = random.Random(derive_seed(seed, "chance"))
        self._own = _read(own)
        self._own_numpy = MT19937(_Words(derive_seed(seed, "numpy")))  # type: ignore[arg-type]

    def __enter__(self) -> None:
        self._outer, self._outer_numpy = _read(_shared), get_bit_generator()
        _write(self._own)
        set_bit_generator(self._own_numpy)

    def __exit__(self, *error: object) -> None:
        self._own = _read(_shared)
        _write(self._outer)
        set_bit_generator(self._outer_numpy)


def seed_draws(seed: int | None) -> None:
    """Seed the current game's chance, as TextArena 0.7's envs do at a reset; None has no effect."""
    if seed is not None:
        _shared.seed(seed)


def draw(items: list[T]) -> T:
    """Remove and return a uniformly random item, with one draw of the current game's chance."""
    return items.pop(_shared.randrange(len(items)))


def weighted(probabilities: Sequence[float]) -> int:
    """Return an index drawn with these probabilities, by one draw of the current game's chance.

    `all_draws` enumerates it, like integers of `random`.
    """
    if len(probabilities) == 1:
        return 0
    if _answer is None:
        drawn = int(_shared.choices(range(len(probabilities)), probabilities)[0])
        if _noted is not None:
            _noted.append(drawn)
        return drawn
    try:
        return _answer(len(probabilities))
    except _UndrawnError as draw:
        draw.probabilities = probabilities
        raise


def all_draws(play: Callable[[], T]) -> Iterator[tuple[float, T]]:
    """Yield every possible result of `play` with its probability, over all outcomes of its draws.

    Enumerates integers, choices and shuffles of `random`, and `weighted`. It does not enumerate
    other draws (`other_draws.py` raises for them).
    """
    return ((probability, result) for _, probability, result in scripted_draws(play))


def scripted_draws(play: Callable[[], T]) -> Iterator[tuple[tuple[int, ...], float, T]]:
    """Yield every outcome as `all_draws` does, each after its draws, as `noted` lists them."""
    scripts: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while scripts:
        script, probability = scripts.pop()
        try:
            with answered(_by(script)):
                result = play()
        except _UndrawnError as draw:
            shares = draw.probabilities or [1 / draw.size] * draw.size
            scripts += [
                ((*script, answer), probability * share)
                for answer, share in reversed([*enumerate(shares)])
            ]
        else:
            yield script, probability, result


class _UndrawnError(BaseException):
    """Raised for a draw beyond the script; a `BaseException`, so that games do not catch it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.probabilities: Sequence[float] = ()  # empty if uniform


@contextlib.contextmanager
def answered(answer: Callable[[int], int]) -> Iterator[None]:
    """Replace draws by `answer(size)` within the context, except draws of size 1, which are 0."""
    global _answer
    _shared._randbelow = lambda size: 0 if size == 1 else answer(size)
    _answer = answer
    try:
        yield
    finally:
        del _shared._randbelow
        _answer = None


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """Yield a list to which each draw within the context is appended; the draws do not change."""
    global _noted
    drawn, below = list[int](), _shared._randbelow

    def draw(size: int) -> int:
        found = int(below(size))
        if size > 1:  # as in `answered`
            drawn.append(found)
        return found

    _shared._randbelow, _noted = draw, drawn
    try:
        yield drawn
    finally:
        del _shared._randbelow
        _noted = None


def _by(script: tuple[int, ...]) -> Callable[[int], int]:
    """Return a function that gives the script's answers in order, then raises `_UndrawnError`."""
    answers = iter(script)

    def answer(size: int) -> int:
        for each in answers:
            return each
        raise _UndrawnError(size)

    return answer


class _Words(ISeedSequence):
    """Seed sequence for numpy by SHAKE-128, since numpy's own one takes 50 us."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return `n_words` words of 32 bits as a list, which numpy reads faster than arrays."""
        digest = hashlib.shake_128(str(self._seed).encode()).digest(4 * n_words)
        return memoryview(digest).cast("I").tolist()


def _memory(generator: random.Random) -> Any:
    return _Bytes.from_address(id(generator) + object.__basicsize__)


def _is_as_in_cpython() -> bool:
    """Return whether the memory of a generator equals its state, word by word."""
    kind = random.Random.__mro__[1]
    if kind.__basicsize__ - object.__basicsize__ < ctypes.sizeof(_Bytes):
        return False
    generator = random.Random(0)
    generator.random()
    *words, index = generator.getstate()[1]
    return _memory(generator).raw == struct.pack(_FORMAT, index, *words)


if _is_as_in_cpython():
    _shared_memory = _memory(_shared)

    def _read(generator: Any) -> Any:
        memory = _shared_memory if generator is _shared else _memory(generator)
        return memory.raw, generator.gauss_next

    def _write(state: Any) -> None:
        _shared_memory.raw, _shared.gauss_next = state
else:

    def _read(generator: Any) -> Any:
        return generator.getstate()

    def _write(state: Any) -> None:
        _shared.setstate(state)
