# SPDX-License-Identifier: Apache-2.0
"""R4, Figures 6.4 and 6.5: maps of DP-CGAN's images by t-SNE and by principal components.

The report calls both maps clustering, and says that PCA gives the better results. Neither makes clusters
(docs/errata.md, R4-17), so clusters are made here: k-means, as many as there are classes, on each map. Their
purity is the share of images that are of the most frequent class of their cluster. The maps read generated
images and public test images alone, and cost nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r4 import generators
from sfumato.experiments.seeds import by_setting, shown
from sfumato.generative.evaluation import RowMap, pca_map, t_sne_map
from sfumato.report import plot_scatter
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "purity"]

NAMES: Final = {"t-SNE": "t_sne", "PCA": "pca"}
_GENERATED, _REAL = 150, 50  # points that are drawn: more make a large file


def purity(places: npt.ArrayLike, labels: npt.ArrayLike, *, classes: int, seed: int) -> float:
    """Return the share of rows that are of the most frequent class of their cluster.

    Args:
        places: The rows to cluster, [rows, numbers].
        labels: The class number of each.
        classes: The number of classes, and of clusters.
        seed: Of the first centers of k-means.

    Returns:
        The share; 1 if every cluster has rows of one class alone.

    >>> purity([[0.0], [0.1], [5.0], [5.1]], [0, 0, 1, 1], classes=2, seed=0)
    1.0
    """
    points, truth = np.asarray(places, dtype=np.float64), np.asarray(labels)
    starts: Any = 10  # its stub allows text alone
    found = KMeans(min(classes, len(points)), n_init=starts, random_state=seed).fit_predict(points)
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (found, truth), 1)
    return float(counts.max(axis=1).sum() / len(points))


def _cases(scale: Scale) -> list[Case]:
    return [{"seed": seed} for seed in generators.seeds(scale)]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    seed, rows = case["seed"], 100 if scale.quick else 500
    made = generators.drawn_images("dp-cgan", scale, seed=seed)
    tsne = t_sne_map(made.synthetic, made.holdout, rows=rows, seed=seed)
    assert tsne is not None  # there are rows enough
    pca = pca_map(made.synthetic, made.holdout, rows=rows, seed=seed)
    first = seed == generators.seeds(scale)[0]
    found: dict[str, Any] = generators.guarantee_of(made.generator)
    for name, places in (("t_sne", tsne), ("pca", pca)):
        classes = made.synthetic.classes
        found[f"{name}_generated"] = purity(
            places.synthetic, places.synthetic_labels, classes=classes, seed=seed
        )
        found[f"{name}_real"] = purity(places.holdout, places.holdout_labels, classes=classes, seed=seed)
        found[f"{name}_points"] = _points(places) if first else None
    return found


def _points(places: RowMap) -> dict[str, list[list[float]]]:
    """Return generated images, each with its class, and test images: rounded, and not too many."""
    generated = np.column_stack([places.synthetic, places.synthetic_labels])[:_GENERATED]
    return {
        "generated": np.round(generated, 3).tolist(),
        "real": np.round(places.holdout[:_REAL], 3).tolist(),
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        [name, *(shown(_values(rows, f"{key}_{kind}"), percent=True) for kind in ("generated", "real"))]
        for name, key in NAMES.items()
    ]
    title = (
        f"Purity of k-means clusters on maps of DP-CGAN's images at epsilon {rows[0]['epsilon']:.2f}, delta "
        f"{rows[0]['delta']:g}, {rows[0]['relation']} neighbors (R4 states no epsilon), in %"
    )
    return [Table(title, ("map", "generated images", "real test images"), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    drawn = next(row for row in rows if row["pca_points"])
    epsilon = drawn["epsilon"]
    return {
        name.lower(): plot_scatter(
            _groups(drawn[f"{key}_points"]),
            title=f"{name} of DP-CGAN's images (epsilon {epsilon:.2f}) and test images",
            x_label="first axis",
            y_label="second axis",
        )
        for name, key in NAMES.items()
    }


def _groups(points: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    groups: dict[str, list[tuple[float, float]]] = {"test": [(x, y) for x, y in points["real"]]}
    for x, y, number in sorted(points["generated"], key=lambda point: point[2]):
        groups.setdefault(f"{number:.0f}", []).append((x, y))
    return groups


def _finding(rows: Sequence[Row]) -> Finding:
    tsne, pca = (_values(rows, f"{key}_generated") for key in NAMES.values())
    verdict = Verdict.CONFIRMED if mean_of(pca) > mean_of(tsne) else Verdict.REFUTED
    return Finding(
        verdict,
        f"k-means on the t-SNE map finds the classes with a purity of {shown(tsne, percent=True)}%, and on "
        f"two principal components with {shown(pca, percent=True)}%. Neither map is a clustering of its own.",
    )


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [value for values in by_setting(rows, "seed", value=name).values() for value in values]


EXPERIMENT = Experiment(
    name="r4-maps",
    report="R4",
    shows=("Figure 6.4", "Figure 6.5"),
    title="Maps of DP-CGAN's images by t-SNE and PCA",
    claim="t-SNE shows the clusters of private images better, and PCA gives the better results.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
