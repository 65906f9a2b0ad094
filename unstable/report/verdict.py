"""Verdict on a run: whether it learned, judged only by what was measured."""

from collections import Counter
from typing import Literal, NamedTuple

from unstable.records.text import bounds, fixed, number, signed
from unstable.report.run import HELD_OUT_LOSS, Run, against
from unstable.types.intervals import Z, z_of_each

Kind = Literal["better", "mixed", "same", "worse", "unknown"]
_GAIN = ("gain", "gain_low", "gain_high")
MARGIN = 0.1
"""Relative difference below which two exploitabilities count as equal."""


class Verdict(NamedTuple):
    """Verdict("better", "It learned.", ["against random: 0.93, +0.35 to version 0 (...)"])"""

    kind: Kind
    answer: str
    reasons: list[str]


class _VerdictFinding(NamedTuple):
    sign: int  # 1: better, -1: worse, 0: no significant difference
    text: str


def verdict(run: Run) -> Verdict:
    """Judge a run by its last paired gains, and by exploitability if it was measured."""
    if not run.is_training:
        return Verdict("unknown", "Recorded games.", ["This folder contains no training."])
    if run.is_taught:
        return _taught(run)
    findings = [*_gains(run), *_exploitabilities(run)]
    if not findings:
        why = (
            "No measure exists at two versions"
            if run.summary.version
            else "No update is finished yet"
        )
        answer = "Learning was not measured."
        return Verdict("unknown", answer, [f"{why}{_measured(run)}."])
    counts = Counter(finding.sign for finding in findings)
    return Verdict(*_answer(counts), [finding.text for finding in findings])


def _taught(run: Run) -> Verdict:
    """Judge a run on examples by the held-out loss, and list its scores."""
    losses = [row for row in run.rows if row.get(HELD_OUT_LOSS) is not None]
    reasons = []
    for key, found in run.summary.evaluations.items():
        ends = found[0], found[-1]
        scores = (f"{fixed(each.figures['score'])} at step {each.version}" for each in ends)
        reasons.append(f"Score against {against(run, key)}: {', '.join(scores)}.")
    if len(losses) < 2:
        return Verdict("unknown", "Fine-tuned on examples.", reasons)
    first, best = losses[0], min(losses, key=lambda row: row[HELD_OUT_LOSS])
    answer = (
        f"Fine-tuned on examples: held-out loss from {number(first[HELD_OUT_LOSS])} to a minimum "
        f"of {number(best[HELD_OUT_LOSS])} at step {best['version']}."
    )
    return Verdict("unknown", answer, reasons)


def _answer(counts: Counter[int]) -> tuple[Kind, str]:
    """Return kind and answer for counts of measures: better (1), worse (-1), neither (0)."""
    total, better, worse = counts.total(), counts[1], counts[-1]
    if better and worse:
        return "mixed", f"Mixed: {better} of {total} measures improved, {worse} worsened."
    if not better and not worse:
        return "same", "No significant difference from version 0."
    found = max(better, worse)
    by = "" if found == total else f" on {found} of {total} measures; the others show no difference"
    return ("better", f"It learned{by}.") if better else ("worse", f"It became worse{by}.")


def _measured(run: Run) -> str:
    """Return a clause on measures that exist at one version only; "" if there are none."""
    once = [
        f"exploitability in {each.key.env} at version {each.version}"
        for found in run.summary.exploitability.values()
        for each in found
    ]
    once += [
        f"the score against {against(run, e.key)} at version {e.version}"
        for e in run.summary.latest
    ]
    return f"; measured once: {', '.join(once)}" if once else ""


def _gains(run: Run) -> list[_VerdictFinding]:
    """Return the gains as findings; their signs hold together at 95 %."""
    findings = []
    known = [each for each in run.summary.latest if None not in map(each.figures.get, _GAIN)]
    wider = z_of_each(len(known)) / Z
    for version, key, values in known:
        gain, low, high = (values[name] for name in _GAIN)
        text = (
            f"Against {against(run, key)}: score {fixed(values['score'])} at version {version}, "
            f"{signed(gain)} (95 % interval {signed(low)} to {signed(high)}) compared "
            f"with version 0 in the same {values['games']:.0f} games."
        )
        is_better, is_worse = gain > wider * (gain - low), -gain > wider * (high - gain)
        findings.append(_VerdictFinding(is_better - is_worse, text))
    return findings


def _exploitabilities(run: Run) -> list[_VerdictFinding]:
    findings = []
    for key, found in run.summary.exploitability.items():
        if len({each.version for each in found}) < 2:
            continue
        ends = found[0], found[-1]
        first, last = ((each.figures["low"], each.figures["high"]) for each in ends)
        sign, why = compared_exploitability(first, last)
        then, now = (f"{fixed(each.figures['high'], 3)} at version {each.version}" for each in ends)
        text = (
            f"Exploitability in {key.env}: {then}, {now}, {why} (upper bounds of NashConv / 2, in "
            "the game's payoff unit; 0 is an equilibrium)."
        )
        findings.append(_VerdictFinding(sign, text))
    return findings


def compared_exploitability(
    first: tuple[float, float], last: tuple[float, float]
) -> tuple[int, str]:
    """Compare the bounds of two exploitabilities: 1 if the last is better, and why."""
    (low, high), (last_low, last_high) = first, last
    if last_low <= high and low <= last_high:
        ends = (bounds(*each, between="–") for each in (first, last))
        return 0, f"about the same: {' and '.join(ends)} overlap"
    if abs(last_high - high) < MARGIN * high:
        return 0, f"about the same: less than {100 * MARGIN:.0f} % apart"
    return (1, "lower") if last_high < high else (-1, "higher")
