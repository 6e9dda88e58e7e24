"""Where passes come from: built-ins, entry points of installed packages, files and modules named by the user.

Nothing is imported until a pass is asked for, so a broken plugin fails only then. Third parties register a
pass with an entry point in the group `graphkit.passes` (name = pass name, value = `module:Class`).
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

from graphkit import options
from graphkit.errors import UsageError
from graphkit.manager import FixpointStage, PassStage, Stage
from graphkit.options import suggest
from graphkit.pipeline import Entry, Fixpoint, Item, Pipeline, caret, parse
from graphkit.rewrite import Pass

GROUP = "graphkit.passes"

BUILTIN: dict[str, str] = {
    "inline-functions": "graphkit.passes.inline_functions:InlineFunctions",
    "canonicalize": "graphkit.passes.canonicalize:Canonicalize",
    "infer-shapes": "graphkit.passes.infer_shapes:InferShapes",
    "fold-constants": "graphkit.passes.fold_constants:FoldConstants",
    "fold-shapes": "graphkit.passes.fold_shapes:FoldShapes",
    "static-shapes": "graphkit.passes.static_shapes:StaticShapes",
    "cse": "graphkit.passes.cse:Cse",
    "cleanup": "graphkit.passes.cleanup:Cleanup",
    "fuse-conv-bn": "graphkit.passes.fuse_conv_bn:FuseConvBn",
    "fuse-pad": "graphkit.passes.fuse_pad:FusePad",
    "fuse-transposes": "graphkit.passes.fuse_transposes:FuseTransposes",
    "fuse-matmul-add": "graphkit.passes.fuse_matmul_add:FuseMatmulAdd",
    "fuse-layernorm": "graphkit.passes.fuse_layernorm:FuseLayernorm",
    "fuse-rmsnorm": "graphkit.passes.fuse_rmsnorm:FuseRmsnorm",
    "fuse-gelu": "graphkit.passes.fuse_gelu:FuseGelu",
    "fuse-layernorm-gelu": "graphkit.passes.fuse_layernorm_gelu:FuseLayernormGelu",
    "fuse-silu": "graphkit.passes.fuse_silu:FuseSilu",
    "split-attention": "graphkit.passes.split_attention:SplitAttention",
    "dequantize-weights": "graphkit.passes.dequantize_weights:DequantizeWeights",
    "strip-activation-qdq": "graphkit.passes.strip_activation_qdq:StripActivationQdq",
    "lower-for-mnn": "graphkit.passes.lower_for_mnn:LowerForMnn",
    "quantize": "graphkit.quant.pass_quantize:Quantize",
    "quantize-embeddings": "graphkit.quant.pass_quantize:QuantizeEmbeddings",
    "spell-for-mnn": "graphkit.passes.spell_for_mnn:SpellForMnn",
}

_ROUND = "fold-shapes,canonicalize,fold-constants,fuse-transposes,cse,cleanup"
_SIMPLIFY = f"fixpoint({_ROUND}),infer-shapes"

# Lowered is what simplification leaves: much of what MNN lacks is gone by then. An input with a default value is a
# constant in MNN, which has no defaults.
_FROZEN = _ROUND.replace("cleanup", "cleanup{freeze_defaults=true}")
_LOWER = f"dequantize-weights,fixpoint({_FROZEN}),fixpoint(split-attention,lower-for-mnn,{_ROUND}),infer-shapes"

_FUSE = "fuse-conv-bn,fuse-pad,fuse-layernorm,fuse-rmsnorm,fuse-gelu,fuse-matmul-add"
_FUSE_FOR_MNN = (
    "fuse-conv-bn,fuse-pad,fuse-layernorm{form=mnn},fuse-rmsnorm{form=decomposed},"
    "fuse-gelu{form=mnn},fuse-silu,fuse-matmul-add,spell-for-mnn"
)

PRESETS: dict[str, str] = {
    "minimal": "inline-functions,cleanup",
    "default": f"inline-functions,{_SIMPLIFY},{_FUSE},cse,cleanup",
    "onnxruntime": f"inline-functions,{_SIMPLIFY},{_FUSE},cse,cleanup",
    "mnn": f"inline-functions,{_LOWER},{_FUSE_FOR_MNN},cse,cleanup",
}


@dataclass(frozen=True)
class PassInfo:
    """A pass that can be had: its name, where it comes from, and how to get it."""

    name: str
    source: str
    target: EntryPoint | type | str

    def load(self) -> type:
        """The class of the pass. Raises UsageError when a plugin cannot be imported or is no pass."""
        try:
            cls = _resolve(self.target)
        except (Exception, SystemExit) as error:  # a plugin may raise anything while it is imported
            raise UsageError(
                f"pass '{self.name}' from {self.source} cannot be loaded: {type(error).__name__}: {error}",
                hint="repair or uninstall that plugin; other passes are not affected",
            ) from error
        problem = lacks(cls)
        if not problem and cls.name != self.name:
            problem = f"it is registered as '{self.name}' but calls itself '{cls.name}'"
        if problem:
            raise UsageError(f"'{self.name}' from {self.source} is not a pass: {problem}")
        return cast(type, cls)

    @property
    def summary(self) -> str:
        """One line on what it does; for a plugin that cannot be loaded, why."""
        try:
            return str(getattr(self.load(), "summary", ""))
        except UsageError as error:
            return f"broken: {error}"

    @property
    def doc(self) -> str:
        """What the pass says of itself: its docstring. Raises UsageError as `load` does."""
        return inspect.getdoc(self.load()) or ""


def _resolve(target: EntryPoint | type | str) -> Any:
    if isinstance(target, str):
        module, _, name = target.partition(":")
        return getattr(importlib.import_module(module), name)
    return target.load() if isinstance(target, EntryPoint) else target


def lacks(value: Any) -> str:
    """What keeps a value from being a pass, in words; empty when it is one."""
    if not isinstance(value, type):
        return f"it is a {type(value).__name__}, not a class"
    wanted = (("name", str), ("summary", str), ("run", FunctionType))
    missing = [attr for attr, kind in wanted if not isinstance(getattr(value, attr, None), kind)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    return "" if dataclasses.is_dataclass(value) else "it is not a dataclass"


def is_pass(value: object) -> bool:
    """True for a dataclass with `name`, `summary` and `run`."""
    return not lacks(value)


class Registry:
    """All passes by name: built-ins, entry points, and the plugins given (files `x.py` or module names).

    Raises UsageError when two sources offer the same name, naming both.
    """

    def __init__(self, plugins: Iterable[str] = ()) -> None:
        self._passes: dict[str, PassInfo] = {}
        self.plugins = tuple(plugins)
        for name, target in BUILTIN.items():
            self.add(PassInfo(name, "graphkit", target))
        for entry in entry_points(group=GROUP):
            dist = entry.dist
            source = f"{dist.name} {dist.version}" if dist is not None else entry.value
            self.add(PassInfo(entry.name, source, entry))
        for plugin in self.plugins:
            for cls in load_plugin(plugin):
                self.add(PassInfo(cls.name, plugin, cls))

    def add(self, info: PassInfo) -> None:
        """Offer one more pass. Raises UsageError when its name is taken, naming both sources."""
        known = self._passes.get(info.name)
        if known is not None or info.name in PRESETS:
            other = known.source if known else "a preset of graphkit"
            raise UsageError(
                f"pass '{info.name}' is offered twice: by {other} and by {info.source}",
                hint="uninstall one of the two, or rename the pass",
            )
        self._passes[info.name] = info

    def __iter__(self) -> Iterator[PassInfo]:
        yield from self._passes.values()

    def get(self, name: str) -> PassInfo:
        """Look a pass up. Raises UsageError with a suggestion."""
        if name not in self._passes:
            hint = "list them with `graphkit passes`"
            raise UsageError(f"unknown pass '{name}'{suggest(name, [*self._passes, *PRESETS])}", hint=hint)
        return self._passes[name]

    def stages(self, pipeline: Pipeline | str) -> list[Stage]:
        """Turn a pipeline into what the manager runs: presets expanded, removals done, options checked.

        Raises UsageError with a caret under an unknown name or option.
        """
        if isinstance(pipeline, str):
            pipeline = parse(pipeline)
        return self._stages(pipeline.items, pipeline.text or str(pipeline))

    def _stages(self, items: Iterable[Entry], text: str) -> list[Stage]:
        stages: list[Stage] = []
        for item in items:
            if isinstance(item, Fixpoint):
                stages.append(_fixpoint(item, self._stages(item.items, text), text))
            elif item.negated:
                if not _contains(stages, item.name):
                    near = suggest(item.name, _names(stages))
                    problem = f"'{item.name}' is not in what stands before '-{item.name}'{near}"
                    raise UsageError(problem + caret(text, item.span))
                stages = _without(stages, item.name)
            elif item.name in PRESETS:
                if item.options:
                    raise UsageError(f"preset '{item.name}' has no options" + caret(text, item.span))
                stages.extend(self.stages(PRESETS[item.name]))
            else:
                stages.append(self._stage(item, text))
        return stages

    def _stage(self, item: Item, text: str) -> PassStage:
        try:
            cls = self.get(item.name).load()
        except UsageError as error:
            raise UsageError(error.message + caret(text, item.span), hint=error.hint) from error
        try:
            instance: Pass = options.build(cls, item.options)
        except UsageError as error:
            hint = f"see `graphkit passes {item.name}`"
            raise UsageError(error.message + caret(text, _place(item, error)), hint=hint) from error
        except Exception as error:  # annotations and __post_init__ of a plugin may raise anything
            problem = f"pass '{item.name}' cannot be made: {type(error).__name__}: {error}"
            raise UsageError(problem + caret(text, item.span)) from error
        return PassStage(instance, str(item))


def _place(item: Item, error: UsageError) -> tuple[int, int]:
    """The option that an error speaks of, else the whole entry."""
    for (key, _), span in zip(item.options, item.option_spans, strict=False):
        if f"'{key}'" in error.message:
            return span
    return item.span


def _fixpoint(item: Fixpoint, stages: list[Stage], text: str) -> FixpointStage:
    limit = FixpointStage.limit
    for key, value in item.options:
        problem = f"unknown option '{key}' of fixpoint (options: max)" if key != "max" else ""
        if not problem and not (value.isdecimal() and int(value) > 0):
            problem = f"option 'max' of fixpoint needs a whole number from 1, not '{value}'"
        if problem:
            raise UsageError(problem + caret(text, item.span))
        limit = int(value)
    return FixpointStage(tuple(stages), limit)


def _names(stages: Iterable[Stage]) -> Iterator[str]:
    for stage in stages:
        if isinstance(stage, FixpointStage):
            yield from _names(stage.stages)
        else:
            yield stage.pass_.name


def _contains(stages: Iterable[Stage], name: str) -> bool:
    return name in _names(stages)


def _without(stages: Iterable[Stage], name: str) -> list[Stage]:
    kept: list[Stage] = []
    for stage in stages:
        if isinstance(stage, FixpointStage):
            kept.append(FixpointStage(tuple(_without(stage.stages, name)), stage.limit))
        elif stage.pass_.name != name:
            kept.append(stage)
    return kept


def load_plugin(plugin: str) -> list[Any]:
    """The passes that a plugin file (`path/x.py`) or module defines itself, but for names with an underscore.

    Raises UsageError when it cannot be imported or defines none.
    """
    try:
        module = _load_file(Path(plugin)) if plugin.endswith(".py") else importlib.import_module(plugin)
    except (Exception, SystemExit) as error:  # a plugin may raise anything while it is imported
        if _is_no_plugin(plugin):
            raise UsageError(f"'{plugin}': a plugin is a .py file or a module name") from error
        file = Path(*plugin.split(".")).with_suffix(".py")
        hint = f"name the file: --plugin {file}" if not plugin.endswith(".py") and file.exists() else None
        problem = f"plugin '{plugin}' cannot be loaded: {type(error).__name__}: {error}"
        raise UsageError(problem, hint=hint) from error
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    classes = [c for c in own if isinstance(c, type) and not c.__name__.startswith("_")]
    found = list(dict.fromkeys(cls for cls in classes if is_pass(cls)))
    if not found:
        nearly = [f"; '{cls.__name__}' is not one: {lacks(cls)}" for cls in classes if hasattr(cls, "run")]
        raise UsageError(
            f"plugin '{plugin}' defines no pass{''.join(nearly)}",
            hint="a pass is a frozen dataclass with name, summary and run(graph); see docs/plugins.md",
        )
    return found


def _is_no_plugin(plugin: str) -> bool:
    """True for a file of another kind, a folder by its path, and what cannot be a module's name."""
    names = all(part.isidentifier() for part in plugin.split("."))
    return not plugin.endswith(".py") and (Path(plugin).is_file() or not names)


def _load_file(path: Path) -> ModuleType:
    # Each file gets a module name of its own: dataclasses and type hints look modules up by name.
    name = f"graphkit_plugin_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
