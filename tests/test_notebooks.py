# SPDX-License-Identifier: Apache-2.0
"""In a real notebook: objects show themselves, and a run that is interrupted goes on with one charge."""

import queue
import textwrap
import time
from pathlib import Path

import pytest

client = pytest.importorskip("jupyter_client", reason="needs the extra `notebooks`")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

PATIENCE = 120  # seconds that a kernel may need on a busy machine

SHOWN = [
    "import pandas as pd, sfumato as sf\n"
    "rows = pd.DataFrame({'age': [20.0, 30.0, 41.25] * 100})\n"
    "data = sf.open('<script>', rows, budget=sf.Budget(epsilon=3, delta=1e-6))",
    "data",
    "data.table.count(epsilon=0.25)",
    "data.mean('age', bounds=(0, 100), epsilon=0.5)",
    "data.account",
    "sf.plan(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=100)",
    "data.account.card()",
]

BEGIN = textwrap.dedent(
    """
    import os, time, torch
    import sfumato as sf
    from torch import nn
    from sfumato.training import train

    account = sf.Ledger("ledger.db").open(
        "clinic", privacy_unit="example", budget=sf.Budget(epsilon=8, delta=1e-4)
    )
    torch.manual_seed(0)
    rows = torch.randn(60, 3), torch.zeros(60, dtype=torch.int64)

    def run(model, slowly, resume=False):
        def loss(model, x, y):
            if slowly:
                time.sleep(0.05)
            return nn.functional.cross_entropy(model(x), y, reduction="none")
        return train(
            model, rows, loss=loss, public_size=60, expected_batch_size=20, steps=60, epsilon=3.0,
            delta=1e-5, account=account, purpose="a model", folder="run", checkpoint_every=1,
            progress=False, resume=resume,
        )
    """
)


def executed(cells: list[str], folder: Path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.slow
def test_objects_show_themselves_in_a_notebook(tmp_path):
    outputs = executed(SHOWN, tmp_path)
    shown = [each[0]["data"] for each in outputs[1:]]
    assert all("text/html" in data for data in shown[:-1]) and "text/markdown" in shown[-1]
    for data in shown:
        rich = "".join(text for kind, text in data.items() if kind != "text/plain")
        assert "<script" not in rich and "41.25" not in rich
    assert "0.25" in shown[1]["text/html"] and "16.7% of the budget" in shown[3]["text/html"]


class Kernel:
    """A kernel of Python that runs cells in a folder."""

    def __init__(self, folder: Path) -> None:
        self.manager = client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def begin(self, code: str) -> str:
        return self.client.execute(code)

    def finish(self, asked: str) -> list[dict]:
        """Return what a cell sent until it was done."""
        found, until = [], time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
            found.append(message)
        raise TimeoutError("the kernel did not answer")

    def run(self, code: str) -> str:
        """Return what a cell printed; fail if it raised."""
        found = self.finish(self.begin(code))
        errors = [each["content"]["traceback"] for each in found if each["msg_type"] == "error"]
        assert not errors, "\n".join(errors[0])
        return "".join(each["content"]["text"] for each in found if each["msg_type"] == "stream")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    started = Kernel(tmp_path)
    yield started
    started.close()


def wait_for(place: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not place.exists():
        assert time.monotonic() < until, f"{place.name} was not written"
        time.sleep(0.02)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_checkpoint_with_one_charge(kernel, tmp_path):
    kernel.run(BEGIN)
    asked = kernel.begin("model = nn.Linear(3, 2)\nrun(model, slowly=True)")
    wait_for(tmp_path / "run" / "metrics.jsonl")
    kernel.manager.interrupt_kernel()
    (error,) = [each["content"] for each in kernel.finish(asked) if each["msg_type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    shown = "\n".join(error["traceback"])
    assert "that of the last checkpoint; the charge stays. Continue with resume=True." in shown
    assert not (tmp_path / "run" / "run.json").exists() and (tmp_path / "run" / "checkpoint.pt").exists()

    kept = kernel.run(
        "kept = torch.load('run/checkpoint.pt', weights_only=True)\n"
        "same = all(torch.equal(model.state_dict()[n], w) for n, w in kept['model'].items())\n"
        "print(same, kept['step'] < 60, [each.progress.value for each in account.releases()])"
    )
    assert kept.split("[")[0].split() == ["True", "True"] and "'begun'" in kept

    done = kernel.run(
        "again = nn.Linear(3, 2)\nfinished = run(again, slowly=False, resume=True)\n"
        "print([each.progress.value for each in account.releases()], finished.card().release_number)"
    )
    assert done.split() == ["['committed']", "1"]
    assert (tmp_path / "run" / "run.json").exists()
