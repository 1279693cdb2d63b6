# SPDX-License-Identifier: Apache-2.0
"""Attribute inference: guesses of one secret column of a row from the others, its label, and a model.

For each value that the secret may have, the attack writes it into the row and asks the model how probable
the row's label is then; it weighs by what the population says about the value, and guesses the likeliest
(Fredrikson et al. 2014, "Privacy in Pharmacogenetics", with the model's probabilities in place of its
confusion matrix; Yeom et al. 2018, arXiv:1709.01604). Probabilities are used as log odds: a model that is
nearly sure of a label for every value still differs in how sure it is.

There are two baselines. `population` is the same guess without the model, learned from rows that an attacker
owns (without it, an attack may only be imputing: Jayaraman and Evans 2022, arXiv:2209.01292). `outsiders` is
the same attack on rows that the model was not trained on. If members are guessed right more often, training
on a row revealed it (the "attribute advantage" of Yeom et al. 2018); differential privacy bounds that: on
average over trainings, members are guessed at most e^epsilon times as often, plus delta. What a model
reveals about members and outsiders alike is knowledge about the population, which no epsilon hides.

Intervals are over rows, for this one model: members and outsiders must be drawn at random from the rows that
were trained on, and from the same population.

Not here   A lower bound on epsilon. It is about the randomness of training, of which one model is one draw.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from sfumato import _check
from sfumato.audit.evidence.proportions import gap, in_words, least_rows, paired_gap, share
from sfumato.audit.evidence.roc import Interval
from sfumato.audit.models.classifier_queries import label_columns, log_probabilities, read_rows
from sfumato.errors import InvalidParameterError

__all__ = ["Attribute", "AttributeInference", "infer_attribute", "value_scores"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribute:
    """A secret: the columns of a row in which it is written, and how each possible value is written.

    The values are public: the domain of the column, not those found in the data.

    Args:
        columns: The columns of the secret.
        values: The possible values, each with one number for each column.

    Raises:
        InvalidParameterError: If columns or values repeat, or there are fewer than two values.

    >>> Attribute.one_hot([4, 5, 6]).values[2]
    (0.0, 0.0, 1.0)
    >>> smoker = Attribute(columns=(3,), values=((0.0,), (1.0,)))
    """

    columns: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for column in self.columns:
            _check.count(column=column + 1)
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise InvalidParameterError("columns must be one or more different places in a row.")
        for value in self.values:
            for number in value:
                _check.finite(value=number)
        if any(len(value) != len(self.columns) for value in self.values):
            raise InvalidParameterError("each of values must have one number for each of columns.")
        if len(set(self.values)) != len(self.values) or len(self.values) < 2:
            raise InvalidParameterError("values must be two or more, all different.")

    @classmethod
    def one_hot(cls, columns: npt.ArrayLike) -> "Attribute":
        """Make a secret with a column for each value: 1 in its own column, 0 in the others.

        Args:
            columns: The columns.

        Returns:
            The attribute.
        """
        places = tuple(int(c) for c in np.asarray(columns).ravel())
        return cls(columns=places, values=tuple(map(tuple, np.eye(len(places)).tolist())))

    def read(self, features: Floats) -> Places:
        """Return which of the values each row has.

        Args:
            features: The rows.

        Returns:
            The number of the value of each row.

        Raises:
            InvalidParameterError: If a row has none of the values, or several.
        """
        written = features[:, list(self.columns)][:, None, :]  # [N, 1, columns]
        same = np.isclose(written, np.array(self.values)[None], rtol=1e-5, atol=1e-6).all(2)  # [N, values]
        if not (same.sum(1) == 1).all():
            raise InvalidParameterError(
                "a row has none of the values that the attribute may have, or several that are as good as "
                "equal. Give all values as they are written in the rows."
            )
        return same.argmax(1).astype(np.int64)

    def write(self, features: Floats, value: int) -> Floats:
        """Return the rows with one of the values in each.

        Args:
            features: The rows. They are not changed.
            value: The number of the value.

        Returns:
            The changed rows.
        """
        changed = features.copy()
        changed[:, list(self.columns)] = self.values[value]
        return changed

    def rest(self, features: Floats) -> Floats:
        """Return the columns that an attacker knows: all others.

        Args:
            features: The rows.

        Returns:
            The rows without the secret.
        """
        return np.delete(features, list(self.columns), axis=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttributeInference:
    """How often a secret was guessed, and how much the model revealed.

    Attributes:
        members: With the model, on rows that it was trained on.
        outsiders: With the model, on other rows.
        population: Without the model, on the members' rows.
        over_outsiders: Members minus outsiders: what training on a row revealed.
        over_population: Members minus population: what the model adds for the attacker.
        values: The number of values of the secret.
    """

    members: Interval
    outsiders: Interval
    population: Interval
    over_outsiders: Interval
    over_population: Interval
    values: int

    @property
    def leaks(self) -> bool:
        """Whether members are guessed more often than outsiders, beyond chance."""
        return self.over_outsiders.low > 0

    def statement(self) -> str:
        """Describe the result in a sentence or two."""
        shown = "is" if self.leaks else "is not"
        return (
            f"A secret with {self.values} values is guessed right for {in_words(self.members)} of members, "
            f"{in_words(self.outsiders)} of outsiders, and without the model for {in_words(self.population)} "
            f"of members. That members are more exposed than outsiders {shown} shown at confidence "
            f"{self.members.confidence:g}."
        )


def value_scores(model: Any, features: Any, labels: Any, *, attribute: Attribute) -> Floats:
    """Return the log odds of each row's label for each value of its secret: [rows, values].

    >>> from torch import nn
    >>> value_scores(
    ...     nn.Identity(), [[0.0, 9.0]], [1], attribute=Attribute(columns=(1,), values=((0.0,), (9.0,)))
    ... ).round(3).tolist()
    [[0.0, 9.0]]
    """
    rows, answers = read_rows((features, labels), name="rows")
    return np.stack(
        [_log_odds(model, attribute.write(rows, v), answers) for v in range(len(attribute.values))], axis=1
    )


def infer_attribute(
    model: Any,
    members: Any,
    outsiders: Any,
    *,
    population: Any,
    attribute: Attribute,
    confidence: float = 0.95,
) -> AttributeInference:
    """Attack a secret column of rows through a model, and measure how much of the success the model
    explains.

    Args:
        model: The attacked classifier: a torch module with logits, or a model with `predict_proba`.
        members: Rows that the model was trained on, a pair (features, labels).
        outsiders: Rows of the same distribution that it was not trained on.
        population: More such rows, which the attacker owns.
        attribute: The secret. Features are a table with the secret in it.
        confidence: The confidence of each interval.

    Returns:
        The shares of right guesses, and their differences.

    Raises:
        InvalidParameterError: If groups are too small, or have different columns.

    >>> from torch import nn
    >>> secret, rows = np.arange(30) % 2, np.zeros((30, 2))
    >>> rows[:, 1] = 9 * secret
    >>> known = rows, secret  # the label is the secret: the population alone reveals it
    >>> found = infer_attribute(
    ...     nn.Identity(),
    ...     known,
    ...     known,
    ...     population=known,
    ...     attribute=Attribute(columns=(1,), values=((0.0,), (9.0,))),
    ... )
    >>> found.members.value, found.over_population.value, found.leaks
    (1.0, 0.0, False)
    """
    groups = {"members": members, "outsiders": outsiders, "population": population}
    read = {name: read_rows(rows, name=name) for name, rows in groups.items()}
    _check_groups(read, attribute, least_rows(confidence))
    imputer = _Imputer(*read["population"], attribute=attribute)
    priors = {name: imputer(*read[name]) for name in ("members", "outsiders")}
    right = {
        name: _right(value_scores(model, *read[name], attribute=attribute) + prior, read[name][0], attribute)
        for name, prior in priors.items()
    }
    without = _right(priors["members"], read["members"][0], attribute)
    inside, outside = ((int(r.sum()), len(r)) for r in (right["members"], right["outsiders"]))
    return AttributeInference(
        members=share(*inside, confidence=confidence),
        outsiders=share(*outside, confidence=confidence),
        population=share(int(without.sum()), len(without), confidence=confidence),
        over_outsiders=gap(inside, outside, confidence=confidence),
        over_population=paired_gap(right["members"], without, confidence=confidence),
        values=len(attribute.values),
    )


def _log_odds(model: Any, rows: Floats, labels: npt.NDArray[Any]) -> Floats:
    """Return log(p / (1 - p)) of the labels; 1 - p from the other classes, as it may be tiny."""
    others = log_probabilities(model, rows)
    place = np.arange(len(rows)), label_columns(model, labels, num_classes=others.shape[1])
    own = others[place]
    others[place] = -np.inf
    return own - np.asarray(special.logsumexp(others, axis=1))


def _right(scores: Floats, features: Floats, attribute: Attribute) -> npt.NDArray[np.bool_]:
    return scores.argmax(1) == attribute.read(features)


def _check_groups(read: dict[str, tuple[Floats, Any]], attribute: Attribute, least: int) -> None:
    for name, (features, _) in read.items():
        if features.ndim != 2 or features.shape[1] <= max(attribute.columns):
            raise InvalidParameterError(f"{name} must be a table of rows that have the attribute's columns.")
        if len(features) < least:
            raise InvalidParameterError(
                f"{name} must have at least {least} rows for this confidence: with fewer, an attack "
                "that is always right looks like one that never is. For gaps of 10%, give 600."
            )
    if len({features.shape[1] for features, _ in read.values()}) > 1:
        raise InvalidParameterError(
            "members, outsiders and population must have the same columns: rows of another distribution "
            "cannot be compared."
        )


class _Imputer:
    """What the population says about the secret, given the other columns and the label.

    Logistic regression on standardized columns and labels, mixed with add-one shares, so that values that
    were never seen keep a probability.
    """

    def __init__(self, features: Floats, labels: npt.NDArray[Any], *, attribute: Attribute) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self._attribute, self._labels = attribute, np.unique(labels)
        secret = attribute.read(features)
        self._counts = np.bincount(secret, minlength=len(attribute.values)) + 1.0
        self._regression = None
        if len(np.unique(secret)) > 1:
            self._regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
            self._regression.fit(self._known(features, labels), secret)

    def __call__(self, features: Floats, labels: npt.NDArray[Any]) -> Floats:
        """Return log probabilities in [rows, values]."""
        shares = np.tile(self._counts / self._counts.sum(), (len(features), 1))
        if self._regression is not None:
            seen = 1 - 1 / self._counts.sum()  # the weight of what was learned
            shares *= 1 - seen
            predicted = self._regression.predict_proba(self._known(features, labels))
            shares[:, self._regression.classes_] += seen * predicted
        return np.log(shares)

    def _known(self, features: Floats, labels: npt.NDArray[Any]) -> Floats:
        one_hot = labels[:, None] == self._labels[None]
        return np.concatenate([self._attribute.rest(features), one_hot], axis=1)
