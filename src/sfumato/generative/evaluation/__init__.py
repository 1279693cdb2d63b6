# SPDX-License-Identifier: Apache-2.0
"""Evaluation of synthetic data: images as arrays, and tables.

`evaluate` measures everything in one call, and `evaluation_report` makes a page of it. Each measure can be
called alone, too.

Guarantee  What touches private data here is charged to an account first (`near_copies`). All else reads
           synthetic rows and a public `holdout`: rows of the same kind that are not protected. A score on
           private test rows is a release, and choosing by it breaks privacy; so classifiers are fitted and
           tuned on synthetic rows alone, and the scores of all of them are reported.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato.generative.evaluation.classifier_scores import ClassifierScore, train_on_synthetic
    from sfumato.generative.evaluation.classifiers import (
        Classifier,
        image_classifiers,
        image_network,
        table_classifiers,
    )
    from sfumato.generative.evaluation.collapse import CollapseFindings, CollapseSign, Finding, find_collapse
    from sfumato.generative.evaluation.distances import HoldoutDistances, holdout_distances
    from sfumato.generative.evaluation.evaluation import Evaluation, EvaluationSettings, evaluate
    from sfumato.generative.evaluation.fidelity import ClassFidelity, class_fidelity
    from sfumato.generative.evaluation.frechet import FrechetDistance, frechet_between, frechet_distance
    from sfumato.generative.evaluation.maps import RowMap, pca_map, t_sne_map
    from sfumato.generative.evaluation.marginals import (
        ColumnShares,
        MarginalErrors,
        column_shares,
        marginal_errors,
    )
    from sfumato.generative.evaluation.memorization import (
        CopyTest,
        NearCopies,
        TrainingRows,
        copy_test,
        near_copies,
    )
    from sfumato.generative.evaluation.page import evaluation_facts, evaluation_report
    from sfumato.generative.evaluation.rows import LabeledRows, labeled_rows
    from sfumato.generative.evaluation.table_columns import labeled_table

__all__ = [
    "ClassFidelity",
    "Classifier",
    "ClassifierScore",
    "CollapseFindings",
    "CollapseSign",
    "ColumnShares",
    "CopyTest",
    "Evaluation",
    "EvaluationSettings",
    "Finding",
    "FrechetDistance",
    "HoldoutDistances",
    "LabeledRows",
    "MarginalErrors",
    "NearCopies",
    "RowMap",
    "TrainingRows",
    "class_fidelity",
    "column_shares",
    "copy_test",
    "evaluate",
    "evaluation_facts",
    "evaluation_report",
    "find_collapse",
    "frechet_between",
    "frechet_distance",
    "holdout_distances",
    "image_classifiers",
    "image_network",
    "labeled_rows",
    "labeled_table",
    "marginal_errors",
    "near_copies",
    "pca_map",
    "t_sne_map",
    "table_classifiers",
    "train_on_synthetic",
]

_HOMES = {
    "ClassFidelity": "fidelity",
    "Classifier": "classifiers",
    "ClassifierScore": "classifier_scores",
    "CollapseFindings": "collapse",
    "CollapseSign": "collapse",
    "ColumnShares": "marginals",
    "CopyTest": "memorization",
    "Evaluation": "evaluation",
    "EvaluationSettings": "evaluation",
    "Finding": "collapse",
    "FrechetDistance": "frechet",
    "HoldoutDistances": "distances",
    "LabeledRows": "rows",
    "MarginalErrors": "marginals",
    "NearCopies": "memorization",
    "RowMap": "maps",
    "TrainingRows": "memorization",
    "class_fidelity": "fidelity",
    "column_shares": "marginals",
    "copy_test": "memorization",
    "evaluate": "evaluation",
    "evaluation_facts": "page",
    "evaluation_report": "page",
    "find_collapse": "collapse",
    "frechet_between": "frechet",
    "frechet_distance": "frechet",
    "holdout_distances": "distances",
    "image_classifiers": "classifiers",
    "image_network": "classifiers",
    "labeled_rows": "rows",
    "labeled_table": "table_columns",
    "marginal_errors": "marginals",
    "near_copies": "memorization",
    "pca_map": "maps",
    "t_sne_map": "maps",
    "table_classifiers": "classifiers",
    "train_on_synthetic": "classifier_scores",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
