# SPDX-License-Identifier: Apache-2.0
"""What is measured of synthetic images: methods, data sets, budgets, and the bars of scores."""

from dataclasses import dataclass, field

from sfumato.experiments.r4.generators import SETTINGS, Setting

__all__ = ["CASES", "TEACHERS", "Case"]

TEACHERS = (10, 25, 50, 100, 250, 1000)  # of PATE-CGAN; report R4 has ten


@dataclass(frozen=True, kw_only=True)
class Case(Setting):
    """One method on one data set, with the bars of its scores."""

    bars: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])  # of scores
    public: str | None = None  # a set of public images to begin with, scaled to the size of the private ones
    public_labels: bool = False  # whether it comes with its labels

    @property
    def subject(self) -> str:
        """The words for it in a table."""
        promised = "without privacy" if self.method == "real" else f"at epsilon {self.epsilon:g}"
        settings = "".join(f", {name} {value}" for name, value in self.settings.items())
        labels = " with labels" if self.public_labels else ""
        begun = "" if self.public is None else f" from public {self.public}{labels}"
        return f"{self.data}, {self.method}{begun}{settings} {promised}"


def _of_r4(name: str, bars: dict[tuple[str, str], float] | None = None) -> Case:
    """Return a case with the settings of the experiments of report R4."""
    return Case(**vars(SETTINGS[name]), bars=bars or {})


def _of_mnist(method: str, epsilon: float, **settings: object) -> Case:
    return Case(data="mnist", method=method, epsilon=epsilon, settings=settings)


CASES: dict[str, tuple[Case, ...]] = {
    "dp-cgan": (_of_r4("dp-cgan", {("logistic regression", "auroc"): 0.90, ("MLP", "auroc"): 0.93}),),
    "mnist-10": (Case(data="mnist", method="dp-cgan", epsilon=10.0, bars={("CNN", "accuracy"): 0.95}),),
    "mnist-1": (Case(data="mnist", method="diffusion", epsilon=1.0, bars={("CNN", "accuracy"): 0.90}),),
    "fashion-10": (
        Case(data="fashion-mnist", method="dp-cgan", epsilon=10.0, bars={("CNN", "accuracy"): 0.80}),
    ),
    "mixtures": (_of_mnist("mixtures", 10.0),),
    "kernel-mean": (_of_mnist("kernel-mean", 10.0),),
    "dp-gan": (_of_r4("dp-gan"), _of_r4("dp-gan-r4")),
    "pate-teachers": tuple(_of_mnist("pate-cgan", 10.0, teachers=number) for number in TEACHERS),
    "pate-r4": (_of_r4("pate-r4"),),
    "public-start": (
        Case(data="digits", method="diffusion", epsilon=1.0),
        Case(data="digits", method="diffusion", epsilon=1.0, public="mnist"),
        Case(data="digits", method="diffusion", epsilon=1.0, public="mnist", public_labels=True),
    ),
    "real": (_of_mnist("real", 0.0),),
}
