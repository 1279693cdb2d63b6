# SPDX-License-Identifier: Apache-2.0
"""A decision tree and a random forest, grown from noisy histograms (`growth`).

Every tree of a forest sees all rows, and nodes look at random features. The probabilities of the trees are
averaged. With Gaussian noise, counts are larger in proportion to it than if rows were dealt to the trees, by
the square root of their number.

Guarantee  (epsilon, delta) for one row with its label: each level of each tree is a part of the budget that a
           row moves by one count for each feature that a node looks at; the leaves of each tree are a part
           that it moves by one count.
Edge cases A row with a missing value counts in the bin for these. A row whose label is not one of the classes
           contributes nothing.
Source     Splits from noisy counts: Friedman and Schuster 2010, "Data mining with differential privacy".
"""

import math
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats
from sfumato.estimators.cell_noise import CellNoise, Part, counts
from sfumato.estimators.classes import PublicClassifier
from sfumato.estimators.trees.bins import Bins, check_domains
from sfumato.estimators.trees.growth import Tree, grow
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator

__all__ = ["DecisionTreeClassifier", "RandomForestClassifier"]

_LEAF_SHARE = 0.1  # of the budget of a tree
_DEEPEST = 16
# Trees and levels, chosen on Adult, which is public. Laplace noise grows with both.
_SIZES = {"pure": (2, 4), "gaussian": (5, 6)}
_TREE_DEPTH = {"pure": 4, "gaussian": 5}
_FEWEST_FEATURES = 5  # of a node of a forest, unless max_features is given


class _Trees(PublicClassifier):
    """What a tree and a forest have in common."""

    bounds: Any
    categories: Any
    max_depth: int | None
    max_bins: int

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone, for any number of features.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_common()
        self.public_classes()
        check_domains(self)
        trees, depth = self._size()
        _check.count(n_estimators=trees, max_depth=depth)
        _check.in_range(1, _DEEPEST, max_depth=depth)
        return self._noise().event()

    def _size(self) -> tuple[int, int]:
        """Return how many trees there are, and how many levels each has."""
        raise NotImplementedError

    def _looked_at(self, features: int) -> int:
        """Return how many features a node looks at."""
        raise NotImplementedError

    def _noise(self) -> CellNoise:
        return CellNoise(epsilon=self.epsilon, delta=self.delta, relation=self._relation())

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        Bins.of(self, features, names)
        self._parts(self._looked_at(features))

    def _parts(self, features: int) -> tuple[Part, Part]:
        """Return the noise of a level, whose nodes look at so many features, and of the leaves of a tree."""
        (trees, levels), noise, relation = self._size(), self._noise(), self._relation()
        level = noise.part((1 - _LEAF_SHARE) / (trees * levels), counts(features, relation))
        return level, noise.part(_LEAF_SHARE / trees, counts(1, relation))

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows, labels = self._labelled(X, y)
        classes, (trees, levels) = self.public_classes(), self._size()
        bins = Bins.of(self, rows.shape[1], getattr(self, "feature_names_in_", None))
        places, features = bins.places(rows), self._looked_at(rows.shape[1])
        level, leaf = self._parts(features)
        self.trees_: list[Tree] = [
            grow(
                places,
                labels,
                classes=len(classes),
                bins=bins,
                levels=levels,
                features=features,
                level=level,
                leaf=leaf,
                generator=generator,
            )
            for _ in range(trees)
        ]
        self.classes_ = classes
        self.bins_ = bins

    def _probabilities(self, rows: Floats) -> Floats:
        places = self.bins_.places(rows)
        total = np.zeros((len(rows), len(self.classes_)))
        for tree in self.trees_:
            total += tree.value[tree.leaves(places)]
        return total / len(self.trees_)


class DecisionTreeClassifier(_Trees):
    """A decision tree, split by noisy class counts in bins of the features.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9; at most 500 with a delta.
        classes: The labels, in the order of `classes_`. They are never read from y.
        bounds: Lower and upper bound of all features, or a list with one pair for each; public.
        categories: Maps features that hold codes 0, 1, ..., by place or by name, to how many codes there are.
            Bounds of these features are not used.
        delta: The delta of the guarantee; 0 for pure differential privacy, with much more noise.
        max_depth: How many levels of splits there are at most, up to 16. None: 5, or 4 with delta 0.
        max_bins: How many bins of equal width the bounds of a feature are divided into, from 2 to 1024.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.linspace(0, 1, 4000)[:, None]
    >>> y = ((x[:, 0] > 0.25) & (x[:, 0] < 0.75)).astype(int)
    >>> tree = DecisionTreeClassifier(epsilon=1.0, classes=(0, 1), bounds=(0, 1), max_depth=2)
    >>> tree.fit(x, y).predict([[0.1], [0.5], [0.9]]).tolist()
    [0, 1, 0]
    """

    def __init__(
        self,
        *,
        epsilon: float,
        classes: Any,
        bounds: Any,
        categories: Any = None,
        delta: float = 0.0,
        max_depth: int | None = None,
        max_bins: int = 16,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.classes = classes
        self.bounds = bounds
        self.categories = categories
        self.max_depth = max_depth
        self.max_bins = max_bins

    def _size(self) -> tuple[int, int]:
        usual = _TREE_DEPTH["pure" if self.delta == 0 else "gaussian"]
        return 1, usual if self.max_depth is None else self.max_depth

    def _looked_at(self, features: int) -> int:
        return features


class RandomForestClassifier(_Trees):
    """A random forest: the average of trees that are split by noisy class counts.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9; at most 500 with a delta.
        classes: The labels, in the order of `classes_`. They are never read from y.
        bounds: Lower and upper bound of all features, or a list with one pair for each; public.
        categories: Maps features that hold codes 0, 1, ..., by place or by name, to how many codes there are.
            Bounds of these features are not used.
        delta: The delta of the guarantee; 0 for pure differential privacy, with much more noise.
        n_estimators: How many trees there are. None: 5, or 2 with delta 0.
        max_depth: How many levels of splits a tree has at most, up to 16. None: 6, or 4 with delta 0.
        max_features: How many features a node looks at. None: the square root of their number, at least 5.
        max_bins: How many bins of equal width the bounds of a feature are divided into, from 2 to 1024.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.linspace(0, 1, 4000)[:, None]
    >>> y = ((x[:, 0] > 0.25) & (x[:, 0] < 0.75)).astype(int)
    >>> forest = RandomForestClassifier(epsilon=1.0, delta=1e-6, classes=(0, 1), bounds=(0, 1))
    >>> forest.fit(x, y).predict([[0.1], [0.5], [0.9]]).tolist()
    [0, 1, 0]
    """

    def __init__(
        self,
        *,
        epsilon: float,
        classes: Any,
        bounds: Any,
        categories: Any = None,
        delta: float = 0.0,
        n_estimators: int | None = None,
        max_depth: int | None = None,
        max_features: int | None = None,
        max_bins: int = 16,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.classes = classes
        self.bounds = bounds
        self.categories = categories
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.max_features = max_features
        self.max_bins = max_bins

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone, for any number of features.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        if self.max_features is not None:
            _check.count(max_features=self.max_features)
        return super().event()

    def _size(self) -> tuple[int, int]:
        trees, levels = _SIZES["pure" if self.delta == 0 else "gaussian"]
        return (
            trees if self.n_estimators is None else self.n_estimators,
            levels if self.max_depth is None else self.max_depth,
        )

    def _looked_at(self, features: int) -> int:
        if self.max_features is None:
            return min(features, max(_FEWEST_FEATURES, math.isqrt(features)))
        if self.max_features > features:
            raise InvalidParameterError(
                f"max_features={self.max_features} must be at most the number of features, {features}."
            )
        return self.max_features
