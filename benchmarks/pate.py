# SPDX-License-Identifier: Apache-2.0
"""What do votes of teachers buy? Accuracy of students, individual budgets, time of accounting and teachers.

    python benchmarks/pate.py                      three seeds each; an hour on two cores
    python benchmarks/pate.py --device cuda        students learn on a GPU
    python benchmarks/pate.py --only accounting    some parts
    python benchmarks/pate.py --quick              digits, one seed, no bars; under a minute
    python benchmarks/pate.py --json               rows for a program: what, value, bar, met

Claim       Add-remove neighbors, one row as the unit, delta 1e-5, noise secure. A seed sets the student's
            first weights, and nothing else; partition, queries and noise differ from run to run.
Mnist       250 teachers at epsilon 1.97, once with a test of agreement and once with prices that do not
            depend on votes. Public: the first 9000 test images without labels; evaluation: the last 1000.
            Bar: 98.5, of Papernot et al. 2018, with 286 answers.
Adult       250 teachers at epsilon 1.90. Bar: 83.7, of the same paper.
Fashion     Fashion-MNIST at epsilon 2, as MNIST.
Individual  MNIST, groups of 34, 43 and 23% with epsilon 1, 2 and 3, beside epsilon 1 for all; prices that do
            not depend on votes, a supervised student. Bar of weighting: 3 points more (IDP-SGD, Table 13:
            91.2 to 95.3).
Accounting  The price of 100,000 queries of 250 teachers and 10 classes, given the votes, over that of all
            priced one by one, estimated from a sample of them. Bars: a tenth for GNMax, a hundredth
            for Confident-GNMax. A quick run has too few queries for these.
Workers     Wall time of 2 workers over that of 1, for 150 teachers. Bar: 0.6. It needs two idle cores.
Memory      Growth of memory while 1000 teachers of MNIST vote, over 250. Bar: 10 MB.
Settings    Those of `sfumato.pate.recipes`.
Data        As in benchmarks/accuracy.py: SFUMATO_DATA names a folder.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from models.results import Row, command_line, left_out, report
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from sfumato import pate
from sfumato.accounting.votes import Votes, answers
from sfumato.datasets import DataNotFoundError, load
from sfumato.labels.features import oriented_gradients
from sfumato.pate.recipes import VoteRecipe, recipe

SEEDS = (11, 12, 13)
DELTA = 1e-5
SAMPLE = 100  # queries that are priced one by one
ACCOUNTING_BARS = {"GNMax": 0.1, "Confident-GNMax": 0.01}  # over one by one
SHARES, EPSILONS = (0.34, 0.43, 0.23), (1.0, 2.0, 3.0)


@cache
def made(name: str) -> VoteRecipe:
    """Return the recipe of a data set; features are computed once."""
    return recipe(load(name))


def accuracy(name: str, epsilon: float, bar: float | None, options: argparse.Namespace) -> Iterator[Row]:
    """Label and learn with the recipe; where it tests agreement, also without the test."""
    known = made(name)
    aggregator, agreement = known.aggregator(known.teachers)
    terms: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "teachers": known.teachers}
    if agreement is not None:
        job = pate.plan(**terms, aggregator=aggregator, agreement=agreement)
        yield from _learned(known, job, f"{name} at epsilon {epsilon:g}, agreement tested", bar, options)
        yield from _learned(
            known, pate.plan(**terms), f"{name} at epsilon {epsilon:g}, data-independent", None, options
        )
    else:
        job = pate.plan(**terms, aggregator=aggregator)
        yield from _learned(known, job, f"{name} at epsilon {epsilon:g}, data-independent", bar, options)


def _learned(
    known: VoteRecipe, job: Any, subject: str, bar: float | None, options: argparse.Namespace
) -> Iterator[Row]:
    found = [_run(known, job, seed, options) for seed in options.seeds]
    asked, answered, right, scores = (list(column) for column in zip(*found, strict=True))
    yield Row(subject=subject, name="queries", value=statistics.mean(asked))
    yield Row(subject=subject, name="answers", value=statistics.mean(answered))
    yield Row(subject=subject, name="answers that are right, %", value=100 * statistics.mean(right))
    yield Row(
        subject=subject,
        name="student, %",
        value=100 * statistics.mean(scores),
        bar=bar,
        at_least=True,
        note=", ".join(f"{100 * score:.1f}" for score in scores),
    )


def _run(
    known: VoteRecipe, job: Any, seed: int, options: argparse.Namespace
) -> tuple[int, int, float, float]:
    job = replace(job, queries=min(job.queries, len(known.public)))
    released = pate.label(
        known.teacher,
        known.features,
        known.labels,
        public=known.public,
        classes=known.classes,
        job=job,
        workers=options.workers,
        progress=False,
    )
    student = _student(known, seed, options.device)
    fitted = student.fit(known.student_public, released.classes, classes=len(known.classes), progress=False)
    truth = np.searchsorted(np.array(known.classes), known.evaluation[1], sorter=np.argsort(known.classes))
    places = np.argsort(known.classes)[truth]
    score = float((np.asarray(fitted.predict(known.evaluation[0])) == places).mean())
    return released.asked, released.answered, _right(known, released.classes), score


def _student(known: VoteRecipe, seed: int, device: str) -> Any:
    student = known.student
    if not isinstance(student, pate.SemiSupervisedStudent):
        return student
    return pate.student_for(
        known.name,
        shape=tuple(known.student_public.shape[1:]),
        classes=len(known.classes),
        seed=seed,
        device=device,
    )


def _right(known: VoteRecipe, classes: Any) -> float:
    """Return the share of right answers: labels of the public rows are known here, as all of it is public."""
    truth = load(known.name).test.labels.numpy()[: len(classes)]
    asked = classes >= 0
    return float((classes[asked] == truth[asked]).mean()) if asked.any() else 0.0


def individual(options: argparse.Namespace) -> Iterator[Row]:
    """Compare one budget for all with groups of three budgets."""
    known = made("mnist")
    subject = "MNIST with budgets 1, 2 and 3 for 34, 43 and 23%"
    noise = pate.GNMax(stddev=0.16 * known.teachers)
    plain = pate.plan(epsilon=EPSILONS[0], delta=DELTA, teachers=known.teachers, aggregator=noise)
    before = _groups_learned(known, plain, options)
    yield Row(
        subject=subject, name="epsilon 1 for all, student, %", value=before, note=f"{plain.queries} answers"
    )
    for method in ("weighting", "upsampling", "vanishing"):
        budgets = pate.IndividualBudgets(epsilons=EPSILONS, shares=SHARES, delta=DELTA, method=method)
        job = pate.plan(delta=DELTA, teachers=known.teachers, aggregator=noise, individual=budgets)
        after = _groups_learned(known, job, options)
        yield Row(subject=subject, name=f"{method}, student, %", value=after, note=f"{job.queries} answers")
        yield Row(
            subject=subject,
            name=f"{method}, points more",
            value=after - before,
            bar=3.0 if method == "weighting" and not options.quick else None,
            at_least=True,
        )


def _groups_learned(known: VoteRecipe, job: Any, options: argparse.Namespace) -> float:
    """Return the mean accuracy of a supervised student, on the features of the teachers."""
    data = load(known.name)
    evaluated = len(known.evaluation[1])
    features = oriented_gradients(data.test.features[-evaluated:]).float().numpy()
    truth = data.test.labels.numpy()[-evaluated:]
    scores: list[float] = []
    for seed in options.seeds:
        rng = np.random.default_rng(seed)
        groups = rng.choice(3, size=len(known.labels), p=SHARES) if len(job.events()) > 1 else None
        released = pate.label(
            known.teacher,
            known.features,
            known.labels,
            public=known.public,
            classes=known.classes,
            job=job,
            groups=groups,
            workers=options.workers,
            progress=False,
        )
        student = pate.SupervisedStudent(SVC(C=10.0, gamma="scale"))
        fitted = student.fit(known.public, released.classes, classes=len(known.classes))
        scores.append(float((fitted.predict(features) == truth).mean()))
    return 100 * statistics.mean(scores)


def accounting(options: argparse.Namespace) -> Iterator[Row]:
    """Price many queries, given their votes."""
    queries = 2000 if options.quick else 100_000
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([8.0] + [0.3] * 9, size=queries)
    counts = rng.multinomial(250, shares)
    rules = {
        "GNMax": Votes(stddev=40.0),
        "Confident-GNMax": Votes(stddev=40.0, threshold=200.0, threshold_stddev=150.0),
    }
    for name, rule in rules.items():
        together = _cpu_seconds(lambda rule=rule: answers(counts, rule))
        alone = [_cpu_seconds(lambda one=one, rule=rule: answers(one, rule)) for one in counts[:SAMPLE, None]]
        yield Row(
            subject=f"accounting of {queries} queries, 250 teachers, 10 classes",
            name=f"{name}, time over one by one",
            value=together / (queries * statistics.mean(alone)),
            bar=None if options.quick else ACCOUNTING_BARS[name],
            note=f"{together:.2f} s of one core",
        )


def _cpu_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def workers(options: argparse.Namespace) -> Iterator[Row]:
    """Train and ask teachers in one process and in two."""
    rows, teachers = (400, 8) if options.quick else (60_000, 150)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 100))
    labels = (features @ rng.normal(size=(100, 10))).argmax(axis=1)
    partition = pate.Partition.draw(teachers)
    taken: dict[int, float] = {}
    for count in (2, 1, 2, 1):  # the first of each also starts processes and fills caches
        began = time.perf_counter()
        with pate.train_teachers(
            SVC(C=10.0),
            features,
            labels,
            partition=partition,
            classes=10,
            workers=count,
            progress=False,
            rehearsal=features[:20],
        ) as ensemble:
            ensemble.counts(features[:8000])
        taken[count] = time.perf_counter() - began
    yield Row(
        subject=f"{teachers} teachers, training and votes",
        name="wall time of 2 workers / 1 worker",
        value=taken[2] / taken[1],
        bar=None if options.quick else 0.6,
    )


def memory(options: argparse.Namespace) -> Iterator[Row]:
    """Compare the peak of memory while few and many teachers vote."""
    known = made("digits" if options.quick else "mnist")
    few, many = (10, 40) if options.quick else (250, 1000)
    peaks = [_peak(known, count) for count in (few, many)]
    yield Row(
        subject=f"memory while {many} teachers of {known.name} vote",
        name=f"MB more than for {few}",
        value=(peaks[1] - peaks[0]) / 1e6,
        bar=None if options.quick else 10.0,
        note=f"{peaks[1] / 1e6:.1f} MB in all",
    )


def _peak(known: VoteRecipe, count: int) -> float:
    partition = pate.Partition.draw(count)
    with pate.train_teachers(
        LogisticRegression(max_iter=20),
        known.features,
        known.labels,
        partition=partition,
        classes=known.classes,
        progress=False,
        rehearsal=known.public,
    ) as ensemble:
        tracemalloc.start()
        ensemble.counts(known.public[:1000])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return float(peak)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "mnist": lambda options: accuracy("mnist", 1.97, 98.5, options),
    "adult": lambda options: accuracy("adult", 1.90, 83.7, options),
    "fashion": lambda options: accuracy("fashion-mnist", 2.0, None, options),
    "individual": individual,
    "accounting": accounting,
    "workers": workers,
    "memory": memory,
}
QUICK: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "digits": lambda options: accuracy("digits", 8.0, None, options),
    "accounting": accounting,
    "workers": workers,
    "memory": memory,
}


def _rows(names: list[str], options: argparse.Namespace) -> Iterator[Row]:
    for name in names:
        try:
            yield from (QUICK if options.quick else PARTS)[name](options)
        except DataNotFoundError as error:
            yield left_out(name, str(error))


def main() -> int:
    """Run what was asked for."""
    parser = command_line(__doc__, quick="digits, one seed, no bars")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", help="some parts")
    parser.add_argument("--device", default="cpu", help="where students learn")
    parser.add_argument("--workers", type=int, default=1, help="processes of teachers")
    parser.add_argument("--runs", type=int, default=len(SEEDS), help="runs of each part")
    options = parser.parse_args()
    options.seeds = SEEDS[:1] if options.quick else range(SEEDS[0], SEEDS[0] + options.runs)
    names = list(QUICK) if options.quick else (options.only or list(PARTS))
    return report("PATE", _rows(names, options), as_json=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
