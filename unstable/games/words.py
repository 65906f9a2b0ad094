"""Words for TextArena's word games, which need NLTK data that is not in its wheel.

They need NLTK's lists of all words and of basic words, and its tags of nouns. If NLTK has no data,
they come from the lexicon with parts of speech and the word counts in textblob's wheel.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import nltk
from nltk.corpus import words
from nltk.tag.perceptron import PerceptronTagger

try:
    from textarena.envs.utils.word_lists import EnglishDictionary
except ImportError:  # TextArena 1.x, which has its own word lists
    EnglishDictionary = None

_BASIC = 3000  # most frequent words that count as basic
_LEXICON, _COUNTS = "en/en-lexicon.txt", "en/en-spelling.txt"


@contextmanager
def offline() -> Iterator[None]:
    """Supply word games with local words within the context, and disable NLTK's downloads.

    The games download at every import or construction, even if the data is present.
    """
    supply_words()
    download = nltk.download
    nltk.download = lambda *args, **kwargs: False
    try:
        yield
    finally:
        nltk.download = download


@cache
def supply_words() -> None:
    """Make NLTK use textblob's lexicon, if NLTK lacks its data.

    Also makes TextArena read its dictionaries once per process, which takes half a second.
    """
    if EnglishDictionary is None:
        return
    EnglishDictionary._load_dic = _read_once(EnglishDictionary._load_dic)
    found = importlib.util.find_spec("textblob")
    assert found is not None and found.origin is not None, "textblob is a dependency"
    folder = Path(found.origin).parent
    if not _has("corpora/words"):
        words.words = lambda fileids=None: list(_word_lists(folder)[fileids or "en"])
    if not _has("taggers/averaged_perceptron_tagger_eng"):
        PerceptronTagger.load_from_json = lambda self, *_, **__: _fill(self, folder)


def _read_once(read: Callable[..., set[str]]) -> Callable[..., set[str]]:
    known: dict[tuple, set[str]] = {}

    def load(dictionary: EnglishDictionary, *files: str) -> set[str]:
        key = (dictionary.keep_proper_nouns, dictionary.keep_non_alpha, *files)
        if key not in known:
            known[key] = read(dictionary, *files)
        return known[key]

    return load


def _has(name: str) -> bool:
    try:
        nltk.data.find(name)
    except LookupError:
        return False
    return True


@cache
def _tags(folder: Path) -> dict[str, str]:
    """Return the part of speech of each word that is no name: {"apple": "NN", ...}."""
    lines = (folder / _LEXICON).read_text(encoding="utf-8").splitlines()
    pairs = (line.split() for line in lines if not line.startswith(";;;"))
    known = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return {word: tag for word, tag in known.items() if _is_plain(word)}


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and word.islower()


@cache
def _word_lists(folder: Path) -> dict[str, list[str]]:
    """Return the lists of all words and of basic words, by the names of NLTK's files."""
    known = sorted(_tags(folder))
    counts = {}
    for line in (folder / _COUNTS).read_text(encoding="utf-8").splitlines():
        word, _, count = line.rpartition(" ")
        if count.isdigit():
            counts[word] = int(count)
    common = sorted(known, key=lambda word: (-counts.get(word, 0), word))
    return {"en": known, "en-basic": sorted(common[:_BASIC])}


def _fill(tagger: PerceptronTagger, folder: Path) -> None:
    """Fill a tagger with each word's most frequent tag; it tags unknown words as nouns."""
    tagger.tagdict = dict(_tags(folder))
    tagger.classes = tagger.model.classes = {"NN"}
