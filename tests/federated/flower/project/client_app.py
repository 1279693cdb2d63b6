# SPDX-License-Identifier: Apache-2.0
"""A client that notes which rounds it was asked in, and keeps one of them waiting."""

import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    settings, partition = context.run_config, context.node_config["partition-id"]
    number, notes = message.content["config"]["server-round"], Path(settings["notes"])
    with (notes / "asked.txt").open("a") as asked:
        asked.write(f"{number} {partition}\n")
    if settings["hang"] == partition and number == settings["hang-in"]:
        (notes / "hanging").touch()
        while not (notes / "go-on").exists():
            time.sleep(0.1)
    arrays = message.content["arrays"]
    moved = ArrayRecord({name: Array(value.numpy() + 1) for name, value in arrays.items()})
    return Message(RecordDict({"arrays": moved}), reply_to=message)
