# SPDX-License-Identifier: Apache-2.0
"""An evaluation as an HTML page.

Guarantee  The page shows the evaluation, which is public or was paid for, and the statements given to it. It
           says what the evaluation charged, and which rows were public.
"""

from collections.abc import Mapping, Sequence

from sfumato.accounting.guarantee import Guarantee
from sfumato.generative.evaluation.evaluation import NO_HOLDOUT, Evaluation
from sfumato.generative.evaluation.maps import RowMap
from sfumato.generative.evaluation.marginals import ColumnShares
from sfumato.report import SynthesisFacts, synthesis_report

__all__ = ["evaluation_facts", "evaluation_report"]

_MOST_VALUES = 16  # of a column that are shown
_HEADS = (
    "class",
    "synthetic rows",
    "fidelity",
    "fidelity of real rows",
    "coverage",
    "recall",
    "spread ratio",
)


def evaluation_report(
    evaluation: Evaluation,
    *,
    title: str,
    data: str,
    statement: str,
    holdout: str | None = None,
    guarantee: Guarantee | None = None,
    class_names: Sequence[str] | None = None,
    settings: Mapping[str, object] | None = None,
    study_note: str | None = None,
    ledger_statement: str | None = None,
) -> str:
    """Return the HTML page of an evaluation. `report.write_report` writes it.

    Args:
        evaluation: The evaluation.
        title: The title of the page.
        data: The name of the synthetic data.
        statement: The paragraph that states the privacy of the synthetic data.
        holdout: Which public rows the holdout is, in words, such as "the public test images of MNIST". None
            if there is none.
        guarantee: The guarantee of the synthetic data; None if it is only stated in words.
        class_names: The names of classes. None means their numbers.
        settings: Public settings of the generator, by name.
        study_note: The note about noise that was not secure; None if it was secure.
        ledger_statement: The statement of the account that was charged; None if there is none.

    Returns:
        The page.
    """
    facts = evaluation_facts(
        evaluation,
        data=data,
        statement=statement,
        holdout=holdout,
        guarantee=guarantee,
        class_names=class_names,
        settings=settings,
        study_note=study_note,
    )
    return synthesis_report(facts, title=title, ledger_statement=ledger_statement)


def evaluation_facts(
    evaluation: Evaluation,
    *,
    data: str,
    statement: str,
    holdout: str | None = None,
    guarantee: Guarantee | None = None,
    class_names: Sequence[str] | None = None,
    settings: Mapping[str, object] | None = None,
    study_note: str | None = None,
) -> SynthesisFacts:
    """Return an evaluation as plain values for the page.

    Args:
        evaluation: The evaluation.
        data: The name of the synthetic data.
        statement: The paragraph that states the privacy of the synthetic data.
        holdout: Which public rows the holdout is, in words; None if there is none.
        guarantee: The guarantee of the synthetic data; None if it is only stated in words.
        class_names: The names of classes. None means their numbers.
        settings: Public settings of the generator, by name.
        study_note: The note about noise that was not secure; None if it was secure.

    Returns:
        The facts.
    """
    marginals, copies = evaluation.marginals, evaluation.memorization
    return SynthesisFacts(
        data=data,
        rows=evaluation.rows,
        statement=statement,
        holdout=f"{holdout} ({evaluation.holdout_rows:,} rows)" if evaluation.holdout_rows else None,
        without_holdout=NO_HOLDOUT,
        charged=_charged(evaluation),
        collapse=[str(each) for each in evaluation.collapse.findings],
        scores=[(s.classifier, s.accuracy, s.auroc, "; ".join(s.notes) or None) for s in evaluation.scores],
        real_scores={
            s.classifier: (s.real_accuracy, s.real_auroc)
            for s in evaluation.scores
            if s.real_accuracy is not None
        },
        curves={s.classifier: s.curve for s in evaluation.scores},
        class_heads=_HEADS,
        classes=_classes(evaluation, class_names),
        images={_name(k, class_names): images for k, images in evaluation.samples.items()},
        maps={_title(each): _groups(each) for each in evaluation.maps},
        distances=_distances(evaluation),
        marginals=marginals.one_way if marginals is not None else {},
        columns={name: _shares(each) for name, each in evaluation.shares.items()},
        marginals_in_words=str(marginals) if marginals is not None else None,
        memorization=str(copies) if copies is not None else None,
        guarantee=guarantee,
        settings=settings or {},
        study_note=study_note,
    )


def _charged(evaluation: Evaluation) -> list[str]:
    if evaluation.memorization is None:
        return []
    release = evaluation.memorization.release
    where = f", to account {release.account!r}" if release.account else ""
    notes = "".join(f"; {note}" for note in release.notes)
    return [f"{release.name}: {release.guarantee}{where}{notes}."]


def _classes(evaluation: Evaluation, names: Sequence[str] | None) -> list[tuple[object, ...]]:
    return [
        (
            _name(each.number, names),
            f"{each.synthetic_rows:,}",
            *(
                None if figure is None else f"{figure:.3f}"
                for figure in (
                    each.fidelity,
                    each.holdout_fidelity,
                    each.coverage,
                    each.recall,
                    each.spread_ratio,
                )
            ),
        )
        for each in evaluation.fidelity
    ]


def _name(number: int, names: Sequence[str] | None) -> str:
    return str(number) if names is None else str(names[number])


def _title(found: RowMap) -> str:
    if found.explained is None:
        return found.method
    shares = " and ".join(f"{share:.0%}" for share in found.explained)
    return f"{found.method} ({shares} of the variance)"


def _groups(found: RowMap) -> dict[str, list[tuple[float, float]]]:
    kinds = {"public rows": found.holdout, "synthetic rows": found.synthetic}
    return {name: [(float(x), float(y)) for x, y in places] for name, places in kinds.items()}


def _shares(found: ColumnShares) -> list[tuple[str, float, float | None]]:
    """Return the values of a column with their shares: those that occur most, if there are many."""
    public = found.holdout or (None,) * len(found.values)
    rows = list(zip(found.values, found.synthetic, public, strict=True))
    if len(rows) <= _MOST_VALUES:
        return rows
    often = sorted(range(len(rows)), key=lambda place: -rows[place][1])
    kept, rest = sorted(often[:_MOST_VALUES]), often[_MOST_VALUES:]
    others = (
        f"{len(rest)} others",
        sum(rows[place][1] for place in rest),
        sum(found.holdout[place] for place in rest) if found.holdout else None,
    )
    return [*(rows[place] for place in kept), others]


def _distances(evaluation: Evaluation) -> list[str]:
    told: list[str] = []
    if evaluation.rows_left_out:
        told.append(
            f"{evaluation.rows_left_out:,} synthetic rows are not finite and were left out of all figures."
        )
    if evaluation.frechet is not None:
        told.append(str(evaluation.frechet))
    if evaluation.distances is not None:
        told.append(str(evaluation.distances))
    return told
