# SPDX-License-Identifier: Apache-2.0
"""What is synthetic data worth? Classifiers that learn from it, marginals of tables, and time.

    python benchmarks/generative.py --device cuda      images and tables, three seeds
    python benchmarks/generative.py --only adult       three seeds; half an hour, most of it the peer's
    python benchmarks/generative.py --only mnist-1     some parts
    python benchmarks/generative.py --device cuda --only pate-teachers pate-r4 dp-gan real
    python benchmarks/generative.py --quick            digits, some rows of Adult, one seed, no bars
    python benchmarks/generative.py --quick --only pate-teachers --seeds 11 12 13
    python benchmarks/generative.py --json             rows for a program: what, value, bar, met

Images      Classifiers learn from 60,000 generated images, tuned on these alone, and are scored once on the
            test images. Add-remove neighbors, one image as the unit, delta 1e-5. Settings by `recipes`: those
            for a GPU need one. Bars: DP-CGAN at epsilon 9.6 an AUROC of 0.90 (logistic regression) and 0.93
            (MLP), Torkzadehmahani et al. 2019 have 0.8757 and 0.8816; the accuracy of a convolutional network
            95% at epsilon 10 and 90% at 1 on MNIST, 80% at 10 on Fashion-MNIST. PATE-CGAN has no bars:
            `pate-teachers` tries 10 (report R4's), 25, 50, 100, 250 and 1000 teachers, with the epsilon of
            each; `pate-r4` has ten, without the start and the relative votes, as in R4. DP-GAN draws no
            classes, so no classifier can learn from it: its Frechet distance is measured, and how many
            classes a logistic regression sees in it (10 if all are as frequent, 1 if there is one); once
            with our settings and once with those of R4's Algorithm 6. `public-start`: digits at epsilon 1 by
            diffusion, which begins with noisy mixtures, or with MNIST as public images, scaled to 8 x 8,
            without labels and with them. `real`: the same classifiers after learning from the private images,
            without privacy.
Claim       Of tables: add-remove neighbors, one row as the unit, epsilon 1, delta 1e-5, the same for both.
            Our noise is secure, so a seed sets only where in their bins numbers lie; the peer's noise comes
            from the seed.
Adult       32,561 rows, 14 columns, without the weights of the survey. Ranges and categories are declared
            from adult.names, and both use the same codes. Workload: all pairs of columns. Bars: AUROC at most
            0.03 below that of real rows and 0.005 below AIM's, marginals no worse, a tenth of its time.
Settings    Our defaults for tables were chosen on this table, those for images on these test images, with
            other noise.
Peer        AIM (McKenna et al. 2022) on `mbi` 2.0.0, which ships the estimation without the mechanism:
            benchmarks/peers/aim.py. Its environment, made by `make bench-peers`, is .venv-aim or that of the
            Python that SFUMATO_AIM_PYTHON names. Without it, its rows are left out. Most of its time is
            compilation of one program for each new model, about 5 s each on one core.
Data        SFUMATO_DATA names a folder, as in benchmarks/accuracy.py.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from models.results import Row, command_line, left_out, report
from synthesis.adult import adult
from synthesis.cases import CASES
from synthesis.images import images

from sfumato.datasets import DataNotFoundError

SEEDS = (11, 12, 13)
PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    **{name: partial(images, name) for name in CASES},
    "adult": adult,
}
QUICK = ("mixtures", "adult")


def _rows(names: list[str], options: argparse.Namespace) -> Iterator[Row]:
    for name in names:
        try:
            yield from PARTS[name](options)
        except DataNotFoundError as error:
            yield left_out(name, str(error))


def main() -> int:
    """Run what was asked for."""
    parser = command_line(__doc__, quick="few rows, one seed, no peer, no bars")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", help="some parts")
    parser.add_argument("--seeds", type=int, nargs="+", help="one run of each part for each")
    parser.add_argument("--device", help="where images are learned and judged; a GPU if there is one")
    options = parser.parse_args()
    options.seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    return report(
        "Synthetic data",
        _rows(options.only or list(QUICK if options.quick else PARTS), options),
        as_json=options.json,
        digits=4,
    )


if __name__ == "__main__":
    raise SystemExit(main())
