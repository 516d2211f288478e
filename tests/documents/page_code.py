"""The Python code of pages, in their order."""

import re
from collections.abc import Callable
from typing import Any

from tests.support.paths import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def examples(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def executed(blocks: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, "a page", "exec"), found)  # the test is of that code
    return found


def traced_once(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `fit` of Keras, which builds the optimizer before its first step.

    TensorFlow traces a step again if variables are made in it, which takes seconds.
    """

    def built_fit(model: Any, *data: Any, **options: Any) -> Any:
        if model.built and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return fit(model, *data, **options)

    return built_fit
