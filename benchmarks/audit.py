# SPDX-License-Identifier: Apache-2.0
"""How much can an audit show? Lower bounds on epsilon beside the truth.

    python benchmarks/audit.py --device cuda       all parts; lira needs a GPU, exposure wants one
    python benchmarks/audit.py --only ideal        one part: ideal, power, cost, claims, lira or exposure
    python benchmarks/audit.py --quick             few runs, no bars; under a minute
    python benchmarks/audit.py --json              rows for a program: what, value, bar, met
    python benchmarks/audit.py --only power --page docs/audit.md       renew the table of a page; or claims

Ideal     One run of a Gaussian mechanism of known epsilon (1, 2, 4, 8 at delta 1e-5), 5000 canaries with
          coordinates of their own, confidence 95%: the mean lower bound over 200 simulated audits, and the
          share of audits above the truth. Bars: 0.6, 1.2, 2.6 and 5.0 for ranked scores; 5% above the truth.
Power     How small a mistake an audit of one run sees: benchmarks/models/power.py.
Cost      How much more time a run takes with 1000 canaries than without, in percent: a small network for
          pictures, batches of about 512 of 20,000 made-up ones, 1000 steps. Bar: 10%.
Claims    Every mechanism, statistic, estimator, label method, generator and way to train of this library:
          the lower bound of an attack, and for a bar what is claimed, which no bound should exceed. All
          bounds of a table hold together.
Lira      Membership inference with 16 shadow models on CIFAR-10: benchmarks/models/lira.py.
Exposure  Secrets planted in Shakespeare: benchmarks/models/exposure.py.
Data      As in benchmarks/accuracy.py: SFUMATO_DATA names a folder. A part without its data is left out.
Seeds     Simulated scores are seeded, so that a row can be repeated. They protect nobody.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from models.exposure import exposure
from models.lira import lira
from models.power import power
from models.power import table as table_of_power
from models.results import Row, command_line, report
from torch import nn

from sfumato.accounting import gaussian
from sfumato.audit.evidence.one_run import binary_guesses, f_dp, gaussian_scores
from sfumato.audit.evidence.results import AuditResult, LowerBound
from sfumato.audit.runs.canaries import Canaries
from sfumato.training import Runtime, train

sys.path.insert(0, str(Path(__file__).parents[1]))
from attacks.catalogue import generators, learners, mechanisms, table, voters
from attacks.federations import federations
from attacks.trainers import trainers

DELTA, CONFIDENCE = 1e-5, 0.95
CANARIES, AUDITS, QUICK_AUDITS = 5000, 200, 5
BARS = {1.0: 0.6, 2.0: 1.2, 4.0: 2.6, 8.0: 5.0}
ATTACKS: dict[str, Callable[..., LowerBound]] = {
    "ranked scores": gaussian_scores,
    "guesses, f-DP": f_dp,
    "binary guesses": binary_guesses,
}

MOST_TIME = 10.0  # percent
QUICK_CLAIMS = 6
PAGES: list[Path] = []

Scores = npt.NDArray[np.float64]


def ideal(quick: bool, device: str) -> Iterator[Row]:
    """Audit Gaussian mechanisms of known epsilon, many times."""
    del device  # numbers only
    for epsilon, bar in BARS.items():
        mu = 1 / gaussian.stddev_for(epsilon, DELTA, sensitivity=1.0)
        runs = [scores(mu, seed) for seed in range(QUICK_AUDITS if quick else AUDITS)]
        for name, attack in ATTACKS.items():
            found = [attack(*run, delta=DELTA, confidence=CONFIDENCE).epsilon for run in runs]
            judged = not quick and attack is gaussian_scores
            yield from _rows(
                epsilon, name, found, bar if judged else None, None if quick else 100 * (1 - CONFIDENCE)
            )


def scores(mu: float, seed: int) -> tuple[Scores, Scores]:
    """Return scores of canaries that are in, each by a fair coin, and of those that are out."""
    draws = np.random.default_rng(seed)
    present = draws.random(CANARIES) < 0.5
    seen = draws.normal(size=CANARIES) + mu * present
    return seen[present], seen[~present]


def _rows(
    epsilon: float, name: str, found: list[float], bar: float | None, most: float | None
) -> Iterator[Row]:
    subject = f"ideal Gaussian mechanism of epsilon {epsilon:g}, {CANARIES} canaries, one run"
    low, _, high = statistics.quantiles(found, n=4)
    mean = statistics.mean(found)
    yield Row(
        subject=subject, name=f"{name}, mean bound", value=mean, bar=bar, at_least=True, quartiles=(low, high)
    )
    above = 100 * statistics.mean(bound > epsilon for bound in found)
    yield Row(subject=subject, name=f"{name}, audits above the truth, %", value=above, bar=most)


def cost(quick: bool, device: str) -> Iterator[Row]:
    """Train with and without canaries, by turns, and compare the time."""
    steps, pairs = (6, 1) if quick else (1000, 3)
    _seconds(2, None, device)  # what is loaded and compiled once
    ratios = []
    for _ in range(pairs):
        without, with_canaries = (_seconds(steps, audit, device) for audit in (None, Canaries(count=1000)))
        ratios.append(100 * (with_canaries / without - 1))
    yield Row(
        subject=f"a run of {steps} steps with 1000 canaries, beside the same run without",
        name="more time, %",
        value=statistics.median(ratios),
        bar=None if quick else MOST_TIME,
    )


def _seconds(steps: int, audit: Canaries | None, device: str) -> float:
    torch.manual_seed(0)
    rows, batch = 20_000, 512
    pictures, labels = torch.rand(rows, 1, 28, 28), torch.arange(rows) % 10
    network = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
    clock = time.process_time if device == "cpu" else time.perf_counter  # others may use the processor, too
    began = clock()
    train(
        network,
        (pictures, labels),
        public_size=rows,
        expected_batch_size=batch,
        steps=steps,
        noise_multiplier=1.0,
        delta=1e-5,
        learning_rate=0.1,
        audit=audit,
        progress=False,
        runtime=Runtime(device=torch.device(device)),
    )
    return clock() - began


def claims(quick: bool, device: str) -> Iterator[Row]:
    """Attack everything that makes a claim."""
    del device  # small things
    everything = {
        "mechanisms and statistics": islice(
            mechanisms(200 if quick else 2000), QUICK_CLAIMS if quick else None
        ),
        "estimators and label methods": islice(learners(100 if quick else 2000), 2 if quick else None),
        "votes of teachers": islice(voters(200 if quick else 4000), 3 if quick else None),
        "generators of synthetic data": islice(
            generators(200 if quick else 4000, canaries=400 if quick else 2000), 3 if quick else None
        ),
        "ways to train": islice(trainers(400 if quick else 2000), 1 if quick else None),
        "ways to federate": islice(federations(400 if quick else 2000), 1 if quick else None),
    }
    for subject, results in everything.items():
        found: list[AuditResult] = []
        for result in results:
            found.append(result)
            yield _beside(result, subject)
        for page in PAGES:
            page.write_text(renewed(page.read_text(), subject, table(found)))


def power_and_page(quick: bool, device: str) -> Iterator[Row]:
    """Find the smallest mistake of each kind that an audit sees, and renew the table of a page."""
    found: list[Row] = []
    for row in power(quick, device):
        found.append(row)
        yield row
    for page in PAGES:
        page.write_text(renewed(page.read_text(), "what is found", table_of_power(found)))


def renewed(page: str, subject: str, new: str) -> str:
    """Return a page with a new table between the marks of a subject."""
    begin, end = f"<!-- {subject} -->\n", f"<!-- end of {subject} -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{new}\n\n{end}{rest.split(end)[1]}"


def _beside(result: AuditResult, subject: str) -> Row:
    assert result.claim is not None
    return Row(
        subject=f"{subject}, lower bound and claim",
        name=f"{result.subject}, delta {result.best.delta:g}",
        value=result.best.epsilon,
        bar=result.claim.epsilon,
        note=result.best.attack.removeprefix("event search: "),
    )


PARTS: dict[str, Callable[[bool, str], Iterator[Row]]] = {
    "ideal": ideal,
    "power": power_and_page,
    "cost": cost,
    "claims": claims,
    "lira": lira,
    "exposure": exposure,
}


def main() -> int:
    """Run what was asked for."""
    parser = command_line(__doc__, quick="few runs, no bars")
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--page", type=Path, help="a page with tables to renew")
    parser.add_argument("--device", default="cpu", help="where to compute")
    arguments = parser.parse_args()
    if arguments.page and arguments.quick:
        parser.error("--page keeps what a whole run found: leave --quick out.")
    if arguments.page:
        PAGES[:] = [arguments.page]
    names = [arguments.only] if arguments.only else list(PARTS)
    found = (row for name in names for row in PARTS[name](arguments.quick, arguments.device))
    return report("Audits", found, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
