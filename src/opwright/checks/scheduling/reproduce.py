"""The command that repeats a failure."""

from __future__ import annotations

import shlex

from opwright.checks.scheduling.plan import Task
from opwright.checks.scheduling.verdict import Settings
from opwright.runtime.targets import name_target

__all__ = ["how_to_reproduce"]


def how_to_reproduce(task: Task, settings: Settings) -> str:
    target = name_target(task.op)
    if target is None:
        where = f"{task.op.contract.function.__name__}, kernels={[task.kernel]!r}, device={str(task.target)!r}"
        where += ", interpreter=True" if task.interpret else ""
        where += f", inputs={settings.inputs!r}" if settings.inputs else ""
        return f"ow.check({where}, checks=['{{check}}'], case='{{case}}')"
    level = f" --level {settings.level}" if settings.level != "quick" else ""
    level += f" --ranks {settings.ranks}" if settings.ranks else ""
    level += f" --inputs {shlex.quote(settings.inputs)}" if settings.inputs else ""
    device = f" --device {task.target}" + (" --interpreter" if task.interpret else "")
    names = f"{shlex.quote(target)} --kernel {shlex.quote(task.kernel)}".replace("{", "{{").replace("}", "}}")
    return f"opwright check {names}{device}{level} --check '{{check}}' --case '{{case}}'"
