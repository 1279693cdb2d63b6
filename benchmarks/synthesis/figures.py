# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/generative.md: grids of generated images, maps of real and synthetic ones, ROC curves.

    python benchmarks/synthesis/figures.py                  digits, all methods, into docs/figures; minutes
    python benchmarks/synthesis/figures.py --data mnist --device cuda --method dp-cgan --epsilon 9.6 --out new

Written are, for the data set DATA:

    synthetic-DATA-METHOD.png        ten generated images of each class, a row each; `real`: test images
    synthetic-DATA-METHOD-pca.svg    test images and generated ones, on principal components (`--map`)
    synthetic-DATA-METHOD-t-sne.svg  the same by t-SNE
    synthetic-DATA-roc.svg           a logistic regression that learned from generated images, on test images

Delta is the default of the data set. Noise is secure, so every run draws other images. Only test images are
read beside what is generated, and those are public.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression

from sfumato.datasets import load
from sfumato.generative.evaluation import labeled_rows, pca_map, t_sne_map, train_on_synthetic
from sfumato.generative.evaluation.maps import RowMap
from sfumato.generative.evaluation.rows import LabeledRows
from sfumato.generative.fit_settings import FitSettings
from sfumato.generative.images.image_rows import holdout_images
from sfumato.generative.recipes import METHODS, image_method
from sfumato.report import Series, line_chart, picture_file, scatter_chart

COLUMNS = 10  # images in a row of a grid
PLACED = 250  # rows of each kind on a map


def made(name: str, data: Any, options: argparse.Namespace) -> Any:
    """Fit a method and draw from it; say what it promises and how long it took."""
    where = FitSettings(epsilon=1.0, device=options.device).where()
    method = image_method(name, public_size=data.public_size, gpu=where.type == "cuda")
    began = time.perf_counter()
    generator = method.fit(data, epsilon=options.epsilon, device=where, progress=options.progress)
    seconds = time.perf_counter() - began
    print(f"{name}: {generator.guarantee}, {seconds:.0f} s", *generator.findings, flush=True)
    images, labels = generator.sample(options.count, seed=0)
    return images, labels, generator.classes


def write_grid(place: Path, images: Any, labels: Any, classes: int) -> None:
    """Write a grid: a row for each class, or ten rows where there are none."""
    if classes == 1:
        rows = dict(enumerate(images[: COLUMNS * COLUMNS].split(COLUMNS)))
    else:
        rows = {number: images[labels == number][:COLUMNS] for number in range(classes)}
    place.write_bytes(picture_file({str(name): part.numpy() for name, part in rows.items()}))


def write_maps(begin: Path, rows: LabeledRows, public: LabeledRows, *, name: str) -> None:
    """Write two maps of test images and generated ones."""
    for kind, places in (("pca", pca_map), ("t-sne", t_sne_map)):
        found = places(rows, public, rows=PLACED)
        if found is not None:
            _write_map(begin.with_name(f"{begin.name}-{name}-{kind}.svg"), found, name=name)


def _write_map(place: Path, found: RowMap, *, name: str) -> None:
    kinds = {"test images": found.holdout, f"images of {name}": found.synthetic}
    groups = [Series(name=kind, points=[(x, y) for x, y in rows.tolist()]) for kind, rows in kinds.items()]
    title = f"{found.method} of test images and images of {name}"
    place.write_text(scatter_chart(groups, title=title, x_label="first axis", y_label="second axis"))


def roc(name: str, synthetic: Any, holdout: Any) -> Series:
    """Return the ROC curve of a logistic regression that learned from generated images."""
    classifiers = {"logistic regression": [LogisticRegression(max_iter=1000)]}
    (score,) = train_on_synthetic(synthetic, holdout, classifiers=classifiers, seed=0)
    print(f"{name}: accuracy {score.accuracy:.3f}, AUROC {score.auroc:.3f}", flush=True)
    return Series(name=f"{name}: accuracy {score.accuracy:.1%}, AUROC {score.auroc:.3f}", points=score.curve)


def write_roc(place: Path, lines: list[Series], *, data: str) -> None:
    """Write the ROC curves of the methods that were made so far."""
    chart = line_chart(
        lines,
        title=f"{data}: ROC curves of classifiers that learned from generated images",
        x_label="false-positive rate",
        y_label="true-positive rate",
        x_bounds=(0.0, 1.0),
        y_bounds=(0.0, 1.0),
    )
    place.write_text(chart)


def main() -> None:
    """Make the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="digits", help="digits, mnist, fashion-mnist or cifar10")
    parser.add_argument("--method", choices=METHODS, nargs="+", default=METHODS)
    parser.add_argument("--map", choices=METHODS, nargs="+", default=("dp-cgan", "diffusion"))
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=5000, help="images that are drawn")
    parser.add_argument("--device", help="where to train; a GPU if there is one")
    parser.add_argument("--progress", action="store_true", help="show bars")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "figures")
    options = parser.parse_args()
    torch.manual_seed(0)  # of the first weights; noise does not come from it
    options.out.mkdir(parents=True, exist_ok=True)
    data = load(options.data)
    test, numbers = holdout_images(data)
    public = labeled_rows(test, numbers, classes=data.num_classes)
    begin, lines = options.out / f"synthetic-{options.data}", list[Series]()
    write_grid(begin.with_name(f"{begin.name}-real.png"), test, numbers, data.num_classes)
    for name in options.method:
        images, labels, classes = made(name, data, options)
        write_grid(begin.with_name(f"{begin.name}-{name}.png"), images, labels, classes)
        if classes == 1:
            continue  # there is nothing to classify
        rows = labeled_rows(images, labels, classes=classes)
        if name in options.map:
            write_maps(begin, rows, public, name=name)
        lines.append(roc(name, rows, public))
        write_roc(begin.with_name(f"{begin.name}-roc.svg"), lines, data=options.data)


if __name__ == "__main__":
    main()
