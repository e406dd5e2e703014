"""The process that runs a task's reference to infer the contract. It takes one task, and answers with a file's text."""

from __future__ import annotations

import json
import socket

from opwright.errors import OpwrightError
from opwright.judged.contract_text import contract_text
from opwright.judged.inferring.inference import infer
from opwright.judged.task import Task
from opwright.results.json_form import from_json, to_json

__all__ = ["Contract", "main"]

# What is inferred: the text of a contract file, whether only the given sizes are possible, and what is fixed.
Contract = dict[str, object]


def main(connection: socket.socket) -> None:
    """Answer the task that the connection brings."""
    with connection, connection.makefile("rwb") as stream:
        task = from_json(Task, json.loads(stream.readline()))
        try:
            inferred = task.stated or infer(task)
            answer: Contract = {
                "text": contract_text(task, inferred),
                "has_one_shape": inferred.has_one_shape,
                "fixed": to_json(inferred.fixed),
            }
        except OpwrightError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the task's own code may raise anything
            answer = {"error": f"{task.file}: inferring the contract raised {type(error).__name__}: {error}"}
        stream.write(json.dumps(answer).encode() + b"\n")
