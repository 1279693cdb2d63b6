# SPDX-License-Identifier: Apache-2.0
"""The figures and tables of docs/choosing-epsilon.md: what an epsilon means for one person.

    python benchmarks/guides/figures.py             both figures into docs/figures, the tables on the screen

Written are:

    epsilon-odds.svg     what somebody may believe after a release, against what they believed before
    epsilon-attack.svg   the share of participants that the best attack finds, at 1% false alarms

Nothing is measured: the curves are the limits that the definition of a guarantee sets. For a mechanism of
which only (epsilon, delta) is known, an attack with false alarms a finds at most min(e^epsilon a + delta,
1 - e^-epsilon (1 - delta - a)) of the participants (Kairouz, Oh, Viswanath 2015), and randomized response
attains it. For Gaussian noise it finds exactly Phi(Phi^-1(a) + 1 / noise multiplier) (Dong, Roth, Su 2022).
"""

import argparse
import math
from pathlib import Path

import numpy as np
from dp_accounting import dp_event
from scipy.stats import norm

import sfumato as sf
from sfumato.report import plot_lines, save_plot

EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0)
PRIORS = (0.01, 0.1, 0.5)
ALARMS = (0.001, 0.01)
DELTA = 1e-6


def belief(prior: float, epsilon: float) -> float:
    """Return the probability after a release that multiplied the odds by e^epsilon."""
    odds = math.exp(epsilon) * prior / (1 - prior)
    return odds / (1 + odds)


def found_at_worst(epsilon: float, alarms: float, *, delta: float = DELTA) -> float:
    """Return the most participants an attack finds, if nothing but (epsilon, delta) is known."""
    few = math.exp(epsilon) * alarms + delta
    many = 1 - math.exp(-epsilon) * (1 - delta - alarms)
    return min(few, many)


def found_under_gaussian_noise(epsilon: float, alarms: float, *, delta: float = DELTA) -> float:
    """Return the most participants an attack finds behind Gaussian noise that costs (epsilon, delta)."""
    noise = sf.calibrate(dp_event.GaussianDpEvent, epsilon=epsilon, delta=delta)
    return float(norm.cdf(norm.ppf(alarms) + 1 / noise))


def percent(share: float) -> str:
    """Write a share with two digits, and never as certainty.

    >>> percent(0.00272), percent(0.731), percent(0.99967), percent(0.00002)
    ('0.27%', '73%', 'above 99.9%', 'below 0.01%')
    """
    if share > 0.999:
        return "above 99.9%"
    if share < 0.0001:
        return "below 0.01%"
    return f"{100 * share:.{3 if share > 0.99 else 2}g}%"


def odds_table() -> str:
    """Return the table of beliefs, in Markdown."""
    before = " | ".join(f"from {prior:.0%}" for prior in PRIORS)
    lines = [f"| epsilon | odds times at most | {before} |", "| --- | --- |" + " --- |" * len(PRIORS)]
    for epsilon in EPSILONS:
        after = " | ".join(
            f"{percent(belief(prior, -epsilon))} to {percent(belief(prior, epsilon))}" for prior in PRIORS
        )
        times = math.exp(epsilon)
        lines.append(f"| {epsilon:g} | {times:,.{2 if times < 10 else 0}f} | {after} |")
    return "\n".join(lines)


def attack_table() -> str:
    """Return the table of attacks, in Markdown."""
    kinds = {"any mechanism": found_at_worst, "Gaussian noise": found_under_gaussian_noise}
    heads = " | ".join(f"{kind}, {percent(alarms)} false alarms" for alarms in ALARMS for kind in kinds)
    lines = [f"| epsilon | {heads} |", "| --- |" + " --- |" * 4]
    for epsilon in EPSILONS:
        cells = [percent(most(epsilon, alarms)) for alarms in ALARMS for most in kinds.values()]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make the figures and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "figures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    priors = np.linspace(0.01, 0.99, 99).tolist()
    odds = plot_lines(
        {
            f"epsilon {e:g}": {prior: belief(prior, e) for prior in priors}
            for e in (5.0, 3.0, 2.0, 1.0, 0.5, 0.1)
        },
        title="The most that a release can change a belief (delta 0)",
        x_label="probability before the release",
        y_label="probability after it, at most",
        percent=True,
    )
    save_plot(odds, options.out / "epsilon-odds.svg")
    grid = np.geomspace(0.1, 10, 41).tolist()
    attack = plot_lines(
        {
            "any mechanism": {e: found_at_worst(e, 0.01) for e in grid},
            "Gaussian noise": {e: found_under_gaussian_noise(e, 0.01) for e in grid},
        },
        title=f"The best attack, at 1% false alarms (delta {DELTA:g})",
        x_label="epsilon",
        y_label="share of participants found",
        log_x=True,
        percent=True,
        levels={"guessing": 0.01},
    )
    save_plot(attack, options.out / "epsilon-attack.svg")
    print(odds_table(), attack_table(), sep="\n\n")


if __name__ == "__main__":
    main()
