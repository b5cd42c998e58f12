"""Answers to an experiment's claims as a section of a report."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from rich.console import Console

from lm.analysis.answers import DECIDED, Answer, Verdict, adjust_p, answer_claim, claimed
from lm.analysis.claims import KINDS, Claim
from lm.analysis.results import Records
from lm.analysis.texts import DocumentCache
from lm.report.render import Section, TableCell, print_section
from lm.report.tables import AT_ONE_RATE
from lm.stats.meta import FEWEST, OverExperiments, over_experiments
from lm.stats.tests import ALPHA, smallest_p
from lm.store.record import Manifest

COLUMNS = (
    "kind", "claim", "expected", "estimate [interval]", "seeds", "p", "q", "p (Holm)", "verdict", AT_ONE_RATE, "source",
)  # fmt: skip
STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow", "not enough seeds": "yellow"}

NARROW, LEFT_OUT = 100, ("seeds", "q", "p (Holm)")
"""Terminal width in characters below which these columns are left out."""

WIDE = 160
"""Terminal width from which on answers on single texts are shown."""

OVER_TEXTS = "over texts of these kinds [95 % CI]"
OVER_NOTES = (
    "Each answer is that of its experiment, at 5 % by itself. The last column is of all together: the mean of true "
    f"values over experiments like these, by random effects. It takes {FEWEST}, each fit to be compared, and its "
    "interval is corrected for no other claim.",
)

NO_VERDICT = (
    "No verdict: an arm is not fit to be compared or has lost runs on a text, all seeds are alike, or the claim is of "
    "initial values, which a seed has alike on each text."
)

POST_HOC = "post hoc"  # label of claims that were written when results of their seeds could be known


def answers(results: Records, tier: str = "", at_one_rate: Records | None = None) -> list[Answer]:
    """Judge the experiment's claims of a size tier, with p corrected over these.

    Each answer has beside it what its claim comes to `at_one_rate`, where results of that are given.
    """
    if at_one_rate is not None:
        manifest = at_one_rate.manifest.copy()
        manifest["claims"] = results.manifest.get("claims", [])
        manifest["registered"] = results.manifest.get("registered", {})
        twin = replace(at_one_rate, manifest=manifest)
        beside = {answer.claim.claim: answer for answer in answers(twin, tier)}
        return [replace(answer, at_one_rate=beside.get(answer.claim.claim)) for answer in answers(results, tier)]
    claims = [Claim(**described) for described in results.manifest.get("claims", [])]
    tier = tier or results.manifest.get("tier") or "C"
    read: DocumentCache = {}
    return adjust_p([answer_claim(results, claim, read) for claim in claims if claim.at(tier)])


def row(answer: Answer) -> list[str]:
    """Format an answer as a row; the estimate has its interval, or of an exact claim the range over seeds."""
    note = "; ".join(part for part in answer.note.split("; ") if not part.startswith(POST_HOC))
    verdict = TableCell(answer.verdict + (f" ({note})" if note else ""), style=STYLES[answer.verdict])
    p = [f"{value:z.3g}" if math.isfinite(value) else "-" for value in (answer.p, answer.q, answer.p_holm)]
    claim, expected = answer.claim, answer.claim.expected() + (", every seed" if answer.claim.exact else "")
    low, high = (f"{end:z.4g}".replace("inf", "∞") for end in (answer.low, answer.high))
    interval = "" if answer.low == answer.high else f" [{low}, {high}]"
    over = f" over {answer.generalises_over}" if answer.generalises_over else ""
    estimate = "-" if math.isnan(answer.estimate) else f"{answer.estimate:z.4g}{interval}{over}"
    beside = _in_words(answer.at_one_rate) if answer.at_one_rate else "-"
    return [kind_of(answer), claim.claim, expected, estimate, str(answer.seeds), *p, verdict, beside, claim.source]


def _in_words(answer: Answer) -> str:
    """Format an answer for a column: verdict, estimate, and whether an arm was not fit to be compared."""
    estimate = f", {answer.estimate:z.4g}" if math.isfinite(answer.estimate) else ""
    return f"{answer.verdict}{estimate}{' (unhealthy)' if ' unhealthy: ' in answer.note else ''}"


def claims_section(
    named_answers: Sequence[tuple[str, Answer]], title: str = "Claims", several: bool = False, width: int | None = None
) -> Section:
    """Build the table of answers with tally and notes; `several` adds the experiment, and some columns need `width`."""
    left_out = () if width is None else ("source", *(LEFT_OUT if width < NARROW else ()))
    answers = [answer for _, answer in named_answers]
    if not any(answer.at_one_rate for answer in answers):
        left_out += (AT_ONE_RATE,)
    shown = [index for index, column in enumerate(COLUMNS) if column not in left_out]
    columns = [*["experiment"] * several, *(COLUMNS[index] for index in shown)]
    named_cells = ((name, row(answer)) for name, answer in named_answers)
    rows = [[*[name] * several, *(cells[index] for index in shown)] for name, cells in named_cells]
    return Section(title, columns, rows, [*tally(answers), *claim_notes(answers)])


@dataclass(frozen=True)
class AnswerOver:
    """The verdict on a claim over several experiments: that of its mean, by random effects, at 5 %."""

    verdict: Verdict
    summary: OverExperiments
    post_hoc: bool = False  # whether an answer of one of them is


def answer_over(answers: Sequence[Answer]) -> AnswerOver | None:
    """Judge a claim over experiments, such as on several texts; None for fewer than `FEWEST`, or an arm that is unfit.

    It is reproduced where the whole interval of the mean is as claimed, and not where all of it is otherwise. A claim
    about a median over seeds is judged by their mean here.
    """
    means = [answer.mean for answer in answers if answer.mean is not None]
    if len(answers) < FEWEST or len(means) < len(answers):
        return None
    summary = over_experiments(*zip(*map(astuple, means), strict=True))
    at_least, at_most = claimed(answers[0].claim)
    verdict: Verdict = "inconclusive"
    if at_least < summary.low and summary.high < at_most:
        verdict = "reproduced"
    elif summary.high < at_least or summary.low > at_most:
        verdict = "not reproduced"
    return AnswerOver(verdict, summary, any(answer.post_hoc for answer in answers))


def cells_of_arms(manifest: Manifest, arms: Iterable[str]) -> frozenset[str]:
    """Return the ids of the cells of some arms of an experiment."""
    return frozenset(cell for arm in arms for cell in manifest["arms"][arm]["cells"].values())


def shared_cells(names: Iterable[str]) -> list[str]:
    """Return a line on experiments that are left out as they share cells with others; none without any."""
    listed = ", ".join(dict.fromkeys(names))
    return [f"Not counted, as they share cells with others here: {listed}."] if listed else []


def common_claims_section(
    named_answers: Sequence[tuple[str, Answer]], manifests: Mapping[str, Manifest] | None = None
) -> Section | None:
    """Build the table of claims that several experiments make, such as on several texts; None without any.

    By the `manifests` of experiments, those that share cells with another one are left out.
    """
    by_claim: dict[tuple[str, str], dict[str, Answer]] = {}
    repeats, cells_by_claim = list[str](), dict[tuple[str, str], set[str]]()
    for name, answer in named_answers:
        key = answer.claim.claim, answer.claim.expected()
        of_claim = cells_of_arms(manifests[name], answer.claim.arms) if manifests else frozenset()
        if of_claim & cells_by_claim.setdefault(key, set()):
            repeats += [name] * (name not in by_claim[key])
            continue
        cells_by_claim[key] |= of_claim
        by_claim.setdefault(key, {})[name] = answer
    common = {key: by_name for key, by_name in by_claim.items() if len(by_name) > 1}
    if not common:
        return None
    names = list(dict.fromkeys(name for by_name in common.values() for name in by_name))
    wholes = {name.rpartition(".")[0] for name in names}  # of one experiment on several texts, that experiment's
    headings = [name.rpartition(".")[2] for name in names] if len(wholes) == 1 else names
    rows = []
    for (claim, expected), by_name in common.items():
        counts = Counter[str](answer.verdict for answer in by_name.values())
        in_all = ", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES if counts[verdict])
        cells = [_in_words(by_name[name]) if name in by_name else "-" for name in names]
        rows.append([claim, expected, *cells, in_all, _words_over(answer_over([*by_name.values()]))])
    columns = [
        "claim",
        "expected",
        *headings,
        "in all",
        OVER_TEXTS if len(wholes) == 1 else "in such settings [95 % CI]",
    ]
    return Section("Claims in common", columns, rows, [*OVER_NOTES, *shared_cells(repeats)])


@dataclass(frozen=True)
class ClaimOverTexts:
    """A claim that was asked on several texts: its first answer, on one text, those on each, and that over them."""

    experiment: str
    first: Answer | None  # None where it was asked on these texts alone
    by_text: dict[str, Answer]
    over: AnswerOver | None  # None where no verdict may rest on their mean

    @property
    def first_at_one_rate(self) -> Answer | None:
        """The first answer with all arms at one learning rate."""
        return self.first and (self.first.at_one_rate or self.first)

    def on_each(self) -> str:
        """Return the verdict where it is the same on each text, "mixed" where texts contradict, "open" otherwise."""
        verdicts = {answer.verdict for answer in self.by_text.values()}
        if len(verdicts) == 1 and verdicts <= set(DECIDED):
            return verdicts.pop()
        return "mixed" if verdicts >= set(DECIDED) else "open"


def claims_over_texts(named_answers: Sequence[tuple[str, Answer]], on_a_text: Collection[str]) -> list[ClaimOverTexts]:
    """Gather the claims of experiments of which each of several parts, `NAME.TEXT`, is on a text of its own."""
    first, texts_by_claim = dict[str, Answer](), dict[tuple[str, str], dict[str, Answer]]()
    for name, answer in named_answers:
        whole, _, text = name.rpartition(".")
        if name in on_a_text:
            texts_by_claim.setdefault((whole, answer.claim.claim), {})[text] = answer
        else:
            first.setdefault(answer.claim.claim, answer)
    return [
        ClaimOverTexts(whole, first.get(claim), by_text, answer_over([*by_text.values()]))
        for (whole, claim), by_text in texts_by_claim.items()
        if len(by_text) > 1 and all(answer.claim.kind != "identity" for answer in by_text.values())
    ]


def over_texts_section(claims: Sequence[ClaimOverTexts], width: int | None = None) -> Section:
    """Build the table of claims that were asked on several texts: old answers beside new ones, fewer where narrow."""
    texts = list(dict.fromkeys(text for claim in claims for text in claim.by_text))
    columns = ["experiment", "claim", "one text, one rate", "one text, own rates", *texts, "on each text", OVER_TEXTS]
    rows = []
    for claim in claims:
        before = [_in_words(answer) if answer else "-" for answer in (claim.first_at_one_rate, claim.first)]
        on_texts = [_in_words(claim.by_text[text]) if text in claim.by_text else "-" for text in texts]
        words = next(iter(claim.by_text.values())).claim.claim
        rows.append([claim.experiment, words, *before, *on_texts, claim.on_each(), _words_over(claim.over)])
    if width is not None and width < WIDE:
        columns, *rows = ([row[1], row[3], *row[-2:]] for row in (columns, *rows))
    answered_by_place: dict[str, list[str]] = {
        "On one text at one rate": [claim.first_at_one_rate.verdict for claim in claims if claim.first_at_one_rate],
        "On one text at own rates": [claim.first.verdict for claim in claims if claim.first],
        "On each text at own rates": [claim.on_each() for claim in claims],
        "Over texts of these kinds": [claim.over.verdict if claim.over else "no verdict" for claim in claims],
    }
    counted = []
    for place, verdicts in answered_by_place.items():
        counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common())
        counted.append(f"{place}: {counts or '-'}.")
    notes = [*counted, NO_VERDICT, *OVER_NOTES]
    return Section("Claims on several texts", columns, rows, notes)


def _words_over(over: AnswerOver | None) -> TableCell:
    """Format the verdict on a claim over experiments, with the mean and its interval."""
    if over is None:
        return TableCell("-")
    mean, low, high = (f"{number:z.4g}" for number in (over.summary.mean, over.summary.low, over.summary.high))
    post_hoc = f" ({POST_HOC})" if over.post_hoc else ""
    return TableCell(f"{over.verdict}, {mean} [{low}, {high}]{post_hoc}", style=STYLES[over.verdict])


def show_claims(named_answers: Sequence[tuple[str, Answer]], console: Console, title: str = "Claims") -> None:
    """Print answers, each with the name of its experiment where there is more than one."""
    several = len({name for name, _ in named_answers}) > 1
    console.print()
    print_section(claims_section(named_answers, title, several, console.width), console)


def kind_of(answer: Answer) -> str:
    """Return the kind of a claim, and whether it was written post hoc: such claims are counted apart."""
    return f"{answer.claim.kind}, {POST_HOC}" if answer.post_hoc else answer.claim.kind


def tally(answers: Sequence[Answer]) -> list[str]:
    """Count the answers to claims of each kind, and those that a correction over the kind leaves, a line a kind."""
    lines = []
    order = [*KINDS, *(f"{kind}, {POST_HOC}" for kind in KINDS)]
    for kind in sorted({kind_of(answer) for answer in answers}, key=lambda kind: [*order, kind].index(kind)):
        of_kind = [answer for answer in answers if kind_of(answer) == kind]
        counts = [(verdict, sum(answer.verdict == verdict for answer in of_kind)) for verdict in STYLES]
        counted = ", ".join(f"{count} {verdict}" for verdict, count in counts if count)
        lines.append(f"{kind}: {len(of_kind)} claim{'s' * (len(of_kind) != 1)}: {counted}.{_corrected(of_kind)}")
    return lines


def _corrected(of_kind: Sequence[Answer]) -> str:
    """Say how many answers are left when p is corrected over all tests of a kind; empty where nothing was decided."""
    tests = [answer for answer in of_kind if math.isfinite(answer.p)]
    decided = [answer for answer in tests if answer.verdict in DECIDED]
    if len(tests) < 2 or not decided:
        return ""
    left_by = ([a for a in decided if a.q <= ALPHA], [a for a in decided if a.p_holm <= ALPHA])
    by_q, by_holm = (
        " and ".join(f"{sum(answer.verdict == verdict for answer in left)} {verdict}" for verdict in DECIDED)
        for left in left_by
    )
    sides = {"less": 1, "greater": 1}  # of the test of a claim; others test both ends of a range
    few = sum(len(tests) * smallest_p(answer.seeds) / sides.get(answer.claim.relation, 2) > ALPHA for answer in tests)
    verb = "has" if few == 1 else "have"
    too_few = f"; {few} of them {verb} too few seeds for Holm's correction over so many" if few else ""
    return (
        f" Each at 5 % by itself. Corrected over these {len(tests)} tests: by Benjamini and Hochberg {by_q}, by Holm "
        f"{by_holm}{too_few}."
    )


def claim_notes(answers: Sequence[Answer]) -> list[str]:
    """Explain how the answers were judged, as far as these need it."""
    relations = {"" if answer.claim.exact else answer.claim.relation for answer in answers}
    lines = [
        "Each claim is judged by its own p at 5 %; q (Benjamini and Hochberg) and p (Holm) are corrected over the "
        "claims of its kind in this table. Published: by others. Ours: measured or derived by us. Identity: true by "
        "construction, so only an error in the code could refute it."
    ]
    if any(answer.post_hoc for answer in answers):
        lines.append(
            "Post hoc: written, changed or given more seeds when results could be known, and too few other seeds were "
            "trained since; counted and corrected by themselves."
        )
        parts = (part for answer in answers for part in answer.note.split("; "))
        reasons = dict.fromkeys(part for part in parts if part.startswith(POST_HOC))
        lines += [f"{reason[:1].upper()}{reason[1:]}." for reason in reasons]
    if relations & {"less", "greater"}:
        lines.append("Less and greater: the mean over seeds, an exact sign-flip test, and its 95 % interval.")
    if relations & {"range", "slope", "equivalent"}:
        lines.append(
            "Ranges, slopes and equivalences: the median over seeds, sign tests, and their interval, 95 % at each end."
        )
    if any("after a look at" in answer.note for answer in answers):
        lines.append(
            "After a look at results: anytime-valid tests by bets on signs instead, with their intervals, at what the "
            "look left of 5 %."
        )
    if any(answer.generalises_over == "seeds and text" for answer in answers):
        lines.append(
            "Over seeds and text: other seeds and other text of this kind. The test over seeds and Student's over "
            "seeds and documents (crossed random effects) must agree; the interval holds both, and p is the larger."
        )
    if reasons := dict.fromkeys(answer.not_over_text_because for answer in answers if answer.not_over_text_because):
        lines.append(f"Over seeds: not over other text, because of one of these: {'; '.join(reasons)}.")
    if "" in relations:
        lines.append("Every seed: no test; the mean and the range over seeds. Any seed can refute it.")
    return lines
