"""A game's own chance: its state of the generators that a whole process shares.

Envs draw from `random`, some could from `numpy.random`, so a game's states are swapped in for each
call of its env. All that is here of CPython's own, and why:

- `random._inst`, which `random`'s functions are methods of: there is no other way to reach it.
- The memory of its state. `random.getstate` would make 625 integers of it at each swap, thirty
  times the cost of its bytes. Where the interpreter keeps it differently, that is what is done.
- `_randbelow`, which all its whole numbers, choices and shuffles come from: `all_draws` answers it.

`tests/games/test_chance.py` fails where an interpreter no longer has these.
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
_answer: Callable[[int], int] | None = None  # says what is drawn, while draws are answered
T = TypeVar("T")


class Chance:
    """Within `with chance:` the shared generators are this game's; nothing may await inside."""

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


def draw(items: list[T]) -> T:
    """Take one of the items out, each as likely, by one draw of the running game's chance."""
    return items.pop(_shared.randrange(len(items)))


def weighted(probabilities: Sequence[float]) -> int:
    """A place of the list, each as likely as it says, by one draw of the running game's chance.

    `all_draws` answers it, as whole numbers of `random`.
    """
    if len(probabilities) == 1:
        return 0
    if _answer is None:
        return int(_shared.choices(range(len(probabilities)), probabilities)[0])
    try:
        return _answer(len(probabilities))
    except _UndrawnError as draw:
        draw.probabilities = probabilities
        raise


def all_draws(play: Callable[[], T]) -> Iterator[tuple[float, T]]:
    """Everything that `play` may return, with its probability, by every answer to every draw.

    Draws are those of whole numbers, choices and shuffles from `random`, and of `weighted`; others
    are not answered (`other_draws.py` refuses them).
    """
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
            yield probability, result


class _UndrawnError(BaseException):
    """A draw that the script does not answer; passes all that catches a game's errors."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.probabilities: Sequence[float] = ()  # where they are not all as likely


@contextlib.contextmanager
def answered(answer: Callable[[int], int]) -> Iterator[None]:
    """Meanwhile `answer` says what is drawn, out of how many; draws of one are not asked for."""
    global _answer
    _shared._randbelow = lambda size: 0 if size == 1 else answer(size)
    _answer = answer
    try:
        yield
    finally:
        del _shared._randbelow
        _answer = None


def _by(script: tuple[int, ...]) -> Callable[[int], int]:
    """The script's answers, one after another."""
    answers = iter(script)

    def answer(size: int) -> int:
        for each in answers:
            return each
        raise _UndrawnError(size)

    return answer


class _Words(ISeedSequence):
    """A seed for numpy: SHAKE-128 of it, where numpy's own sequence would take 50 us."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """So many words of 32 bits: a list, which numpy reads faster than its own arrays."""
        digest = hashlib.shake_128(str(self._seed).encode()).digest(4 * n_words)
        return memoryview(digest).cast("I").tolist()


def _memory(generator: random.Random) -> Any:
    return _Bytes.from_address(id(generator) + object.__basicsize__)


def _is_as_in_cpython() -> bool:
    """Whether a generator's memory is what its state says, word by word."""
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
