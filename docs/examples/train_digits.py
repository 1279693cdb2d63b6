"""A private network from a stated budget: handwritten digits, with a ledger and a page that shows the curves.

The run is reserved in the ledger before a single digit is read, trained by DP-SGD, and committed. What it
cost is then part of the account's statement. Run it with `make demo`. The digits ship with scikit-learn and
are public; the ledger and the training treat each of the training images as somebody's secret.
"""

from datetime import datetime
from pathlib import Path

import torch
from torch import nn

import sfumato as sf
from sfumato.datasets import load
from sfumato.report import TrainingFacts, training_report, write_report
from sfumato.training import train

folder = Path("runs") / f"digits-{datetime.now():%Y%m%d-%H%M%S}"
folder.mkdir(parents=True)

# 1. A budget for all that will ever be learned from these images: epsilon 3. The unit is one image.
digits = load("digits")  # 1,437 images to train on, and 360 to test with, which are not protected
account = sf.Ledger(folder / "ledger.db").open(
    "digits", privacy_unit="example", budget=sf.Budget(epsilon=3, delta=1e-4)
)

# 2. An ordinary network and an ordinary optimizer. All settings are fixed before the data is touched.
torch.manual_seed(0)  # of the first weights; the noise comes from the operating system
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
settings = {"expected batch size": 512, "epochs": 40, "clip norm": 1.0, "learning rate": 0.5, "momentum": 0.9}

# 3. The least noise that the account still admits is found, the run is charged, and then it is trained.
run = train(
    model,
    digits,
    account=account,
    purpose="train a network on digits",
    expected_batch_size=settings["expected batch size"],
    epochs=settings["epochs"],
    clip_norm=settings["clip norm"],
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=settings["learning rate"], momentum=0.9),
    ema_decay=0.9,
    evaluation=digits.test,
    folder=folder,
)
for row in run.history:
    print(
        f"step {row.step:4}   epsilon {row.epsilon:.3f}   loss {row.loss:.3f}   accuracy {row.accuracy:.1%}"
    )

# 4. What may be said about it.
print(f"\nAccuracy {run.accuracy:.1%} on digits it has never seen, with {run.guarantee}.")
print(f"\n{run.statement()}")

# 5. The budget is spent: nothing more can be learned from these images.
try:
    train(
        nn.Linear(64, 10),
        digits,
        account=account,
        purpose="one more",
        expected_batch_size=512,
        epochs=1,
        noise_multiplier=1,
    )
except sf.errors.BudgetExceededError as refusal:
    print(f"\nRefused: {refusal}")

print(f"\n{account.statement()}")

# 6. A page with the curves, which loads nothing and runs nothing.
facts = TrainingFacts(
    data="digits",
    model="A network with 64 hidden units",
    guarantee=run.guarantee,
    statement=run.statement(),
    history=run.history,
    settings=settings,
    study_note=run.study_note,
)
page = training_report(facts, title="Digits, learned privately", ledger_statement=str(account.statement()))
print(f"\nOpen {write_report(folder / 'report.html', page)} in a browser.")
