# SPDX-License-Identifier: Apache-2.0
"""AIM on top of `mbi`, which ships the estimation but not the mechanism: run in an environment that has it.

    python benchmarks/peers/aim.py < setting.json > answer.json

Written from Algorithms 2 and 3 of McKenna et al. 2022, arXiv:2201.12677, with the paper's constants: 16
rounds for each column to start with, a tenth of each round for the choice, mirror descent of 1000 steps, warm
starts, 80 MB of model. The budget is the rho whose conversion by Canonne et al. 2020 is (epsilon, delta).
Noise comes from numpy, which is faster than secure noise. The setting names a file of codes and one for the
result.
"""

import json
import math
import sys
import time
from itertools import combinations

import numpy as np


def rho_for(epsilon: float, delta: float) -> float:
    """Return the largest rho that is (epsilon, delta)-DP, by Proposition 12 of Canonne et al. 2020."""

    def converted(rho: float) -> float:
        orders = 1 + np.geomspace(1e-3, 1e4, 4000)
        gain = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        return float((rho * orders + gain).min())

    low, high = 0.0, epsilon + 10
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if converted(middle) <= epsilon else (low, middle)
    return low


def eliminated(factors: list, kept: tuple[int, ...], sizes: list[int]) -> np.ndarray:
    """Return the marginal of some columns of a model, by eliminating the others one by one."""
    left = [*factors]
    columns = set(range(len(sizes))) - set(kept)

    def scope(column: int) -> set[int]:
        return {each for axes, _ in left if column in axes for each in axes} | {column}

    while columns:
        column = min(columns, key=lambda each: math.prod(sizes[other] for other in scope(each)))
        axes = (*(scope(column) - {column}), column)
        table = added([factor for factor in left if column in factor[0]], axes, sizes)
        left = [factor for factor in left if column not in factor[0]]
        top = table.max(axis=-1)
        left.append((axes[:-1], top + np.log(np.exp(table - top[..., None]).sum(axis=-1))))
        columns.remove(column)
    table = added(left, kept, sizes)
    table = np.exp(table - table.max())
    return table / table.sum()


def added(factors: list, axes: tuple[int, ...], sizes: list[int]) -> np.ndarray:
    """Return the sum of log-potentials, with these axes."""
    total = np.zeros([sizes[column] for column in axes])
    for columns, values in factors:
        turned = values.transpose([columns.index(column) for column in axes if column in columns])
        total = total + turned[tuple(slice(None) if column in columns else None for column in axes)]
    return total


class Aim:
    """One run of the mechanism."""

    def __init__(self, codes: np.ndarray, sizes: list[int], workload: list[tuple[int, ...]], seed: int):
        import mbi

        self.mbi, self.draws = mbi, np.random.default_rng(seed)
        self.names = [f"c{place}" for place in range(len(sizes))]
        self.domain = mbi.Domain(self.names, sizes)
        self.sizes = sizes
        inside = {
            part for each in workload for n in range(1, len(each) + 1) for part in combinations(each, n)
        }
        self.weights = {
            each: sum(len(set(each) & set(other)) for other in workload)
            for each in sorted(inside, key=lambda each: (len(each), each))
        }
        self.counts = {each: self._counted(codes, each) for each in self.weights}
        self.found: list = []
        self.model = None

    def _counted(self, codes: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
        shape = [self.sizes[column] for column in columns]
        cells = np.ravel_multi_index(tuple(codes[:, column] for column in columns), shape)
        return np.bincount(cells, minlength=math.prod(shape)).astype(float)

    def clique(self, columns: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of columns."""
        return tuple(self.names[column] for column in columns)

    def measure(self, columns: tuple[int, ...], stddev: float) -> None:
        """Add one noisy marginal."""
        noisy = self.counts[columns] + self.draws.normal(0, stddev, self.counts[columns].size)
        self.found.append(self.mbi.LinearMeasurement(noisy, self.clique(columns), stddev))

    def fit(self, steps: int) -> None:
        """Estimate anew, from where the last estimate ended."""
        engine = self.mbi.estimation.MirrorDescent()
        self.model = engine.estimate(self.domain, self.found, iters=steps, warm_start=self.model)

    def answers(self, asked: list[tuple[int, ...]]) -> dict[tuple[int, ...], np.ndarray]:
        """Return the model's counts, by numpy: mbi compiles a program for each, which takes minutes."""
        known = self.model.potentials
        factors = [
            (tuple(self.names.index(name) for name in clique), np.asarray(known[clique].values, dtype=float))
            for clique in known.cliques
        ]
        return {
            each: float(self.model.total) * eliminated(factors, each, self.sizes).ravel() for each in asked
        }

    def fitting(self, limit: float) -> list[tuple[int, ...]]:
        """Return the candidates with which the model has at most `limit` MB, or is no larger than it is."""
        size = self.mbi.junction_tree.hypothetical_model_size
        measured = [each.clique for each in self.found]
        allowed = max(limit, size(self.domain, measured))
        return [each for each in self.weights if size(self.domain, [*measured, self.clique(each)]) <= allowed]

    def choose(self, limit: float, epsilon: float, stddev: float) -> tuple[int, ...]:
        """Choose a candidate by the exponential mechanism."""
        known = self.fitting(limit)
        answers = self.answers(known)
        scores = np.array(
            [
                self.weights[each]
                * (
                    np.abs(self.counts[each] - answers[each]).sum()
                    - math.sqrt(2 / math.pi) * stddev * self.counts[each].size
                )
                for each in known
            ]
        )
        noise = self.draws.gumbel(size=len(known))
        return known[
            int(np.argmax(epsilon * scores / (2 * max(self.weights[each] for each in known)) + noise))
        ]

    def run(self, rho: float, *, megabytes: float, steps: int) -> int:
        """Run all rounds, and return their number."""
        columns = len(self.sizes)
        rounds = 16 * columns
        stddev, epsilon = math.sqrt(rounds / (2 * 0.9 * rho)), math.sqrt(8 * 0.1 * rho / rounds)
        for column in range(columns):
            self.measure((column,), stddev)
        used, number, last = columns * 0.5 / stddev**2, 0, False
        self.fit(steps)
        while not last:
            number += 1
            if rho - used < 2 * (0.5 / stddev**2 + epsilon**2 / 8):
                left, last = rho - used, True
                stddev, epsilon = math.sqrt(1 / (2 * 0.9 * left)), math.sqrt(8 * 0.1 * left)
            used += 0.5 / stddev**2 + epsilon**2 / 8
            chosen = self.choose(megabytes * used / rho, epsilon, stddev)
            before = self.answers([chosen])[chosen]
            self.measure(chosen, stddev)
            self.fit(steps)
            moved = np.abs(self.answers([chosen])[chosen] - before).sum()
            print(f"round {number}: {used / rho:.2f} of the budget", file=sys.stderr, flush=True)
            if moved <= math.sqrt(2 / math.pi) * stddev * self.counts[chosen].size:
                stddev, epsilon = stddev / 2, epsilon * 2
        self.fit(steps)
        return number


def main() -> None:
    """Answer the setting on standard input."""
    setting = json.load(sys.stdin)
    codes = np.load(setting["codes"])
    began = time.perf_counter()
    np.random.seed(setting["seed"])  # noqa: NPY002 - mbi's synthetic data draws from the global state
    aim = Aim(codes, setting["sizes"], [tuple(each) for each in setting["workload"]], setting["seed"])
    rho = rho_for(setting["epsilon"], setting["delta"])
    rounds = aim.run(rho, megabytes=setting["megabytes"], steps=setting["steps"])
    table = aim.model.synthetic_data(rows=len(codes))
    made = np.column_stack([np.asarray(table.data[name]) for name in aim.names]).astype(np.int64)
    seconds = time.perf_counter() - began
    np.save(setting["result"], made)
    json.dump({"seconds": seconds, "rounds": rounds, "rho": rho}, sys.stdout)


if __name__ == "__main__":
    main()
