"""A ledgered set of private releases from a real table: 569 patients of the Wisconsin breast cancer study.

Every release asks the account first ("may I?"), is charged, and only then touches the data. Run it with
`make demo`. The table ships with scikit-learn and is public, so the truth can be printed beside each result;
the ledger and the mechanisms treat everything about it, its size too, as private.
"""

from datetime import datetime
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import sfumato as sf
from sfumato.mechanisms import DiscreteLaplace, Gaussian, IntervalExponential, Laplace

RADIUS = (5.0, 30.0)  # public bounds in mm, from a textbook and not from the data
NEIGHBORS = sf.Relation.ADD_REMOVE

patients = load_breast_cancer(as_frame=False)
radius = np.clip(patients.data[:, 0], *RADIUS)  # mean radius of the cell nuclei
benign = patients.target == 1

ledger_file = Path("runs") / f"first-release-{datetime.now():%Y%m%d-%H%M%S}.db"
ledger_file.parent.mkdir(exist_ok=True)
account = sf.Ledger(ledger_file).open(
    "patients", privacy_unit="patient", budget=sf.Budget(epsilon=1.5, delta=1e-6), relation=NEIGHBORS
)

# 1. How many benign and malignant tumors? One patient is in one bin, so the pair of counts moves by 1.
counting = DiscreteLaplace.calibrated(epsilon=0.25, sensitivity=1, relation=NEIGHBORS)
with account.spend(counting, purpose="patients by diagnosis"):
    counts = [counting.release(int(n)) for n in (benign.sum(), (~benign).sum())]
print(f"benign {counts[0]}, malignant {counts[1]}   (in truth {benign.sum()}, {(~benign).sum()})")

# 2. The mean radius: a noisy sum, divided by the noisy number of patients that is already out.
summing = Laplace.calibrated(epsilon=0.25, sensitivity=RADIUS[1], relation=NEIGHBORS)
with account.spend(summing, purpose="sum of radius"):
    total = summing.release(float(radius.sum()))
print(f"mean radius {total / max(sum(counts), 1):.2f} mm   (in truth {radius.mean():.2f})")

# 3. The median radius, by the exponential mechanism over the intervals between the values. One patient more
#    moves the rank of a point by 0 or 1 and the middle rank by 1/2, so the distance between them by 1/2.
choosing = IntervalExponential(epsilon=0.25, sensitivity=0.5, relation=NEIGHBORS, bounds=RADIUS)
with account.spend(choosing, purpose="median of radius"):
    edges = [RADIUS[0], *np.sort(radius).tolist(), RADIUS[1]]
    scores = [-abs(rank - len(radius) / 2) for rank in range(len(radius) + 1)]
    median = choosing.release(edges, scores)
print(f"median radius {median:.2f} mm   (in truth {np.median(radius):.2f})")

# 4. Squared distances from a public middle, with as little Gaussian noise as the account still admits.
middle = 15.0
most = max(abs(bound - middle) for bound in RADIUS) ** 2
noise = account.calibrate(lambda s: Gaussian(stddev=s * most, sensitivity=most, relation=NEIGHBORS))
squaring = Gaussian(stddev=noise * most, sensitivity=most, relation=NEIGHBORS)
with account.spend(squaring, purpose="sum of squared distances"):
    squares = squaring.release(float(((radius - middle) ** 2).sum()))
variance = squares / max(sum(counts), 1) - (total / max(sum(counts), 1) - middle) ** 2
print(f"standard deviation {max(variance, 0.0) ** 0.5:.2f} mm   (in truth {radius.std():.2f})")

# 5. The budget is spent. The next question is refused before it sees any data.
try:
    account.reserve(counting, purpose="one question too many")
except sf.errors.BudgetExceededError as refusal:
    print(f"\nRefused: {refusal}")

print(f"\n{account.statement()}")
print(f"\nLook again: .venv/bin/sfumato ledger show patients --ledger {ledger_file}")
