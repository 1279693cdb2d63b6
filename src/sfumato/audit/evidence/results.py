# SPDX-License-Identifier: Apache-2.0
"""Results of audits: lower bounds on epsilon, and checks, beside the claim.

A check tests one condition of the proof of a claim: that noise has the stated size, that batches are drawn as
stated. If one fails, the run is not the mechanism that was priced, and nothing proves its claim. A check that
was not made is named with its reason wherever a result is shown.

Guarantee  A lower bound of confidence c exceeds the true epsilon in at most a share 1 - c of audits. A bound
           above the claim refutes the claim. A bound below it proves nothing: another attack may be better.
           If several attacks are made on one claim, each must have `confidence_of_each`, so that all of them
           hold together. Bounds are shown rounded down.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import InvalidParameterError

__all__ = [
    "AuditResult",
    "Check",
    "CheckName",
    "Finding",
    "LowerBound",
    "Unchecked",
]

_DIGITS = 3  # of a bound, where it is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class LowerBound:
    """A lower bound on epsilon, which holds with a confidence.

    Args:
        epsilon: The bound: the true epsilon is at least this.
        delta: The delta that the bound is for.
        confidence: The probability with which the bound holds, over repeated audits.
        attack: The attack that gave it, in a few words.
        trials: The number of observations that it uses.

    Raises:
        InvalidParameterError: If a number is out of range.
    """

    epsilon: float
    delta: float
    confidence: float
    attack: str
    trials: int

    def __post_init__(self) -> None:
        _check.non_negative(epsilon=0.0 if self.epsilon == math.inf else self.epsilon, delta=self.delta)
        _check.probability(confidence=self.confidence)

    @property
    def told(self) -> str:
        """The epsilon as it is shown, rounded down.

        >>> LowerBound(epsilon=2.9987, delta=1e-5, confidence=0.95, attack="guesses", trials=100).told
        '2.99'
        """
        return f"{-round_up(-self.epsilon, _DIGITS):g}"

    def __str__(self) -> str:
        return (
            f"epsilon is at least {self.told} at delta {self.delta:g} ({self.attack}, {self.trials} "
            f"observations, confidence {self.confidence:.4g})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one test. If the code is right, the p-value is at most p with probability at most p.

    Args:
        p_value: The p-value.
        message: What is wrong, in a sentence, if the p-value is small.
        observations: The number of observations that the test uses.
    """

    p_value: float
    message: str
    observations: int


class CheckName(StrEnum):
    """All checks of a training run. The result of an audit has each of them, or the reason why it has not."""

    STEPS = "noise of each step"
    TENSORS = "noise of the model's own tensors"
    GRADIENTS = "noise beneath the model's gradients"
    CANARIES = "contributions of canaries"
    PUSHES = "contributions in the model's own tensors"
    BATCHES = "batches"
    PRICE = "price"
    UPDATES = "updates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchecked:
    """A check that was not made.

    Args:
        name: The name of the check.
        why: The reason, which follows "because".

    Raises:
        InvalidParameterError: If one of the two is missing.
    """

    name: str
    why: str

    def __post_init__(self) -> None:
        if not all(isinstance(part, str) and part for part in (self.name, self.why)):  # pyright: ignore[reportUnnecessaryIsInstance] - files hold anything
            raise InvalidParameterError("a check that was not made needs a name and a reason.")

    def __str__(self) -> str:
        return f"{self.name}, because {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Tests of one condition of a claim, together. It fails if the p-value is at most `error`.

    Args:
        name: The condition, in a few words.
        p_value: The p-value of all its tests together.
        error: The probability that right code fails.
        message: What is wrong, in a sentence, if it fails.
        observations: The number of observations that it uses.
        sees: The smallest mistake that it finds nine times in ten.

    Raises:
        InvalidParameterError: If the p-value or the error is out of range.
    """

    name: str
    p_value: float
    error: float
    message: str
    observations: int
    sees: str

    def __post_init__(self) -> None:
        _check.in_range(0, 1, p_value=self.p_value)  # NaN would never fail
        _check.probability(error=self.error)

    @classmethod
    def of(cls, name: str, findings: Sequence[Finding], *, error: float, sees: str) -> "Check":
        """Return the worst of some findings, with the probability that any of them is as bad.

        Args:
            name: The condition that was tested.
            findings: The results of its tests, at least one.
            error: The probability that right code may fail.
            sees: The smallest mistake that is found nine times in ten.

        Returns:
            The check, whose p-value counts all findings (Bonferroni).

        >>> found = [Finding(p_value=p, message="wrong", observations=10) for p in (0.5, 0.001)]
        >>> Check.of("noise", found, error=0.01, sees="little").p_value
        0.002
        """
        worst = min(findings, key=lambda finding: finding.p_value)
        return cls(
            name=name,
            p_value=min(1.0, len(findings) * worst.p_value),
            error=error,
            message=worst.message,
            observations=max(finding.observations for finding in findings),
            sees=sees,
        )

    def __repr__(self) -> str:
        verdict = f"FAILED: {self.message}" if self.failed else "passed"
        return f"<Check: {self.name}; {verdict}; p-value {self.p_value:.3g}>"

    @property
    def failed(self) -> bool:
        """Whether it shows that the run is not what was priced."""
        return self.p_value <= self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditResult:
    """A claim, and the results of attacks on it.

    Args:
        subject: What was attacked, such as "Laplace mechanism" or "DP-SGD, 100 steps".
        claim: The guarantee that is claimed; None if nothing is claimed, as by plain training.
        bounds: The lower bounds on epsilon, at least one.
        in_scores: The scores of canaries that took part, if there were any.
        out_scores: The scores of canaries that did not take part.
        checks: Tests of conditions of the claim, beside the bounds.
        unchecked: Checks that were not made.
        blind: The reason why nothing could be observed, if there is one.

    Raises:
        InvalidParameterError: If there is no bound, or one at a smaller delta than that of the claim.
    """

    subject: str
    claim: Guarantee | None
    bounds: tuple[LowerBound, ...]
    in_scores: tuple[float, ...] = ()
    out_scores: tuple[float, ...] = ()
    checks: tuple[Check, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    blind: str | None = None

    def __post_init__(self) -> None:
        if not self.bounds:
            raise InvalidParameterError("an audit needs at least one attack: pass a lower bound.")
        if self.claim is not None and any(bound.delta < self.claim.delta for bound in self.bounds):
            raise InvalidParameterError(
                "a bound at a smaller delta than the claim's says nothing against the claim: a mechanism may "
                f"have a larger epsilon there. Attack at delta={self.claim.delta:g}."
            )

    def __repr__(self) -> str:
        verdict = "refuted" if self.refuted else "not refuted" if self.tested else "not tested"
        return f"<AuditResult: {self.subject}; epsilon at least {self.best.told}; {verdict}>"

    def _repr_html_(self) -> str:
        from sfumato.audit.evidence.views import result_view  # only notebooks need it

        return result_view(self)

    @property
    def best(self) -> LowerBound:
        """The largest lower bound."""
        return max(self.bounds, key=lambda bound: bound.epsilon)

    @property
    def refuted(self) -> bool:
        """Whether an attack shows that the claim is false, or that the run is not the one it is made for."""
        if self.claim is None:
            return False
        return self.best.epsilon > self.claim.epsilon or bool(self.failures)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.failed)

    @property
    def tested(self) -> bool:
        """Whether anything could have shown the claim to be false, or did."""
        return self.claim is None or self.untested() is None

    def untested(self) -> str | None:
        """Return why nothing was tested. A check that failed is a test, whatever else could not be tested.

        Returns:
            The reason, as part of a sentence; None if something was tested.
        """
        if self.refuted:
            return None
        if self.claim is not None and math.isinf(self.claim.epsilon):
            return "no attack can contradict an infinite epsilon"
        return self.blind

    def reasons(self) -> list[str]:
        """Return why the claim is false.

        Returns:
            One sentence for each reason; none if the claim is not refuted.
        """
        found = [f"{check.message} (chance {check.p_value:.1g} in right code)." for check in self.failures]
        if self.claim is not None and self.best.epsilon > self.claim.epsilon:
            found.insert(0, "the scores of canaries show a larger epsilon.")
        return [sentence[0].upper() + sentence[1:] for sentence in found]

    def statement(self) -> str:
        """Return the claim, the best lower bound and the verdict.

        Returns:
            A sentence or more, for people who must judge the claim.
        """
        if self.claim is None:
            return f"{self.subject} claims nothing; {self.best}."
        claimed = f"{round_up(self.claim.epsilon):g} at delta {self.claim.delta:g}"
        message = f"{self.subject} claims epsilon {claimed}; {self.best}: {self._verdict()}."
        return " ".join([message, *self.gaps()])

    def gaps(self) -> list[str]:
        """Return the checks that were not made.

        Returns:
            One sentence that names them; none if all were made.
        """
        return [f"Not checked: {'; '.join(str(each) for each in self.unchecked)}."] if self.unchecked else []

    def _verdict(self) -> str:
        if self.failures:
            return " ".join(["THE CLAIM IS FALSE.", *self.reasons()]).removesuffix(".")
        if self.refuted:
            return "THE CLAIM IS FALSE"
        if (why := self.untested()) is not None:
            return f"NOTHING WAS TESTED, as {why}"
        passed = f", and {len(self.checks)} checks found nothing" if self.checks else ""
        return f"the attacks do not contradict the claim{passed}"

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain values, for a report.

        Returns:
            A dictionary that JSON can hold; numbers that are not finite are text.
        """
        return {
            "subject": self.subject,
            "claim": None if self.claim is None else str(self.claim),
            "claimed_epsilon": None if self.claim is None else _plain(self.claim.epsilon),
            "bounds": [asdict(bound) | {"epsilon": _plain(bound.epsilon)} for bound in self.bounds],
            "checks": [asdict(check) for check in self.checks],
            "unchecked": [asdict(each) for each in self.unchecked],
            "blind": self.blind,
            "refuted": self.refuted,
            "in_scores": [_plain(score) for score in self.in_scores],
            "out_scores": [_plain(score) for score in self.out_scores],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], claim: Guarantee | None) -> "AuditResult":
        """Return a result that `to_dict` described.

        Args:
            found: What `to_dict` returned.
            claim: The guarantee that is claimed.

        Returns:
            The result.
        """
        return cls(
            subject=found["subject"],
            claim=claim,
            bounds=tuple(_read_bound(bound) for bound in found["bounds"]),
            in_scores=tuple(float(score) for score in found["in_scores"]),
            out_scores=tuple(float(score) for score in found["out_scores"]),
            checks=tuple(Check(**check) for check in found["checks"]),
            unchecked=tuple(Unchecked(**each) for each in found["unchecked"]),
            blind=found["blind"],
        )


def _read_bound(found: Mapping[str, Any]) -> LowerBound:
    values: dict[str, Any] = {**found, "epsilon": float(found["epsilon"])}
    return LowerBound(**values)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
