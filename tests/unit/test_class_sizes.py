"""No dataclass has more fields, and no class more methods, than a reader can hold in mind.

The tables name those that are larger, and how large. They may shrink, and nothing is added to them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "moeinf"
MOST_FIELDS, MOST_METHODS = 12, 15
FIELDS = {
    "sampling/params:SamplingParams": 19,
    "types:TensorPlan": 18,
    "server/page/live:LiveEvent": 13,
    "engine/completion:GenerationStats": 14,
}
METHODS = {
    "pull/checkpoint/tensors:Tensors": 25,
    "text/templates/traced:Traced": 25,
    "runtime/cache/tier:ExpertTier": 24,
    "distributed/listener:Listener": 23,
    "engine/gpu:GpuRunner": 23,
    "models/fields:Fields": 23,
    "models/gpu/math:TorchMath": 23,
    "models/cpu/math:NumpyMath": 22,
    "models/layers/array_math:ArrayMathOf": 22,
    "models/layers/array_math:Array": 21,
    "text/tokenizer:Tokenizer": 21,
    "engine/model:Model": 20,
    "prefixes/store:PrefixStore": 20,
    "runtime/gpu/host_link:HostLink": 20,
    "models/gpu/weights:DeviceWeights": 19,
    "text/text_worker:TextWorker": 18,
    "engine/answers/generator:Generator": 16,
    "engine/cpu:CpuRunner": 16,
}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).with_suffix("").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield f"{module}:{node.name}", node


def fields(node: ast.ClassDef) -> int:
    """Of a dataclass, without those that it inherits."""
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return 0
    named = (each for each in node.body if isinstance(each, ast.AnnAssign))
    return sum("ClassVar" not in ast.unparse(each.annotation) for each in named)


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def test_no_dataclass_has_more_fields_than_it_may_have() -> None:
    large = {name: count for name, node in classes() if (count := fields(node)) > MOST_FIELDS}
    assert large == FIELDS, "split what grew into parts; take out of the table what shrank"


def test_no_class_has_more_methods_than_it_may_have() -> None:
    large = {name: count for name, node in classes() if (count := methods(node)) > MOST_METHODS}
    assert large == METHODS, "split what grew; take out of the table what shrank"
