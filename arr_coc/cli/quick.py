"""A first answer without what it does not need: half of its time went into modules that answering never uses.

transformers imports compilers, training over several machines and the names of all its models before it reads a
weight. In a process that answers a question and ends, packages whose own code nobody asks for are not run, and on a
machine without a GPU training over several machines counts as not installed. Whatever is asked of a package that was
put off, it is loaded for, as ever: another version of transformers can make this slower, not wrong.
"""

import atexit
import gc
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

VERBS = ("ask", "chat", "compare", "show")  # that answer in this process and end
PUT_OFF = (
    *("sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes"),  # what compilers reckon with
    *("transformers", "transformers.models"),  # each reads the files of all models
)
WHOLE = ("sympy.", "torch._dynamo.")  # parts that cannot do without their package
ALONE = ("torch._dynamo._trace_wrapped_higher_order_op",)  # but this one can
HOMES = {  # modules of transformers, and the names in them that arr_coc imports by way of it: it sleeps on
    "configuration_utils": ("PreTrainedConfig", "PretrainedConfig"),
    "generation.configuration_utils": ("GenerationConfig",),
    "generation.logits_process": (
        *("LogitsProcessor", "LogitsProcessorList"),
        *("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper"),
    ),
    "generation.stopping_criteria": ("StoppingCriteria", "StoppingCriteriaList"),
    "generation.streamers": ("TextIteratorStreamer",),
    "generation.utils": ("GenerationMixin",),
    "tokenization_utils_tokenizers": ("PreTrainedTokenizerFast",),
    "image_processing_base": ("ImageProcessingMixin",),
    "tokenization_mistral_common": ("MistralCommonBackend",),
    "tokenization_utils_base": ("PreTrainedTokenizerBase",),
    "models.auto.configuration_auto": ("CONFIG_MAPPING", "AutoConfig"),
    "models.auto.modeling_auto": ("AutoModel", "AutoModelForImageTextToText"),
    "models.auto.processing_auto": ("AutoProcessor",),
    "models.auto.tokenization_auto": ("AutoTokenizer",),
    "models.qwen3_vl.configuration_qwen3_vl": ("Qwen3VLConfig",),
    "models.qwen3_vl.modeling_qwen3_vl": ("Qwen3VLForConditionalGeneration", "Qwen3VLPreTrainedModel"),
    "models.qwen3_vl.processing_qwen3_vl": ("Qwen3VLProcessor",),
}
CHECKS = "transformers.utils.import_utils"  # where transformers finds out what is installed
ABSENT = ("is_accelerate_available", "is_torch_distributed_available", "is_torch_flex_attn_available")


def _mark(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return _mark if function is None else function


class _Expression:
    """What nothing is: nobody reckons with symbols here."""


STAND_INS: dict[str, dict[str, Any]] = {  # what is asked all the time, and has one answer where nothing is compiled
    "sympy": {"Basic": _Expression},
    "torch._dynamo": dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _mark),
    "torch.fx.experimental.symbolic_shapes": {
        **dict.fromkeys(("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious"), bool),
        "statically_known_true": bool,
        "guarding_hint_or_throw": lambda size: size,
        "has_guarding_hint": lambda size: True,
        "is_nested_int": lambda size: False,
        "sym_and": lambda *all_of: all(all_of),
        "sym_eq": lambda one, other: one == other,
        "sym_or": lambda *any_of: any(any_of),
    },
}


def hold_back(verb: str) -> None:
    """Put off what this verb does not need, if it is one that answers. Before torch and transformers are imported."""
    if verb in VERBS and not {"torch", "transformers"} & set(sys.modules):
        gc.disable()  # thousands of modules are made, and none is thrown away: `let_go` ends it
        sys.meta_path.insert(0, Holder())


def let_go() -> None:
    """Once everything is loaded: what is there stays, and what comes is collected again."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def leave(code: int, at_once: bool) -> None:
    """End the process. What was loaded in a hurry is not taken apart: that alone takes a third of a second.

    Nor what is left `at_once`, as by who interrupts: a thread that answers still would end it all with an abort.
    """
    if not at_once:
        if not any(isinstance(one, Holder) for one in sys.meta_path):
            sys.exit(code)
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    atexit._run_exitfuncs()
    os._exit(code)


class Holder:
    """Finds the modules that are put off, and the one whose checks are answered here."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.startswith(WHOLE) and name not in ALONE:
            return _woken_part(name)
        if name not in PUT_OFF and name != CHECKS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = Later(spec.loader) if name in PUT_OFF else Checks(spec.loader)
        return spec


class Checks(Loader):
    """Runs the module, and answers that what takes several machines or a compiler is not here; with a GPU, it stays."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        import torch

        self.loader.exec_module(module)
        for name in () if torch.cuda.is_available() else ABSENT:
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: False)
        module.direct_transformers_import = lambda *_, **__: sys.modules["transformers"]  # type: ignore[attr-defined]


class Later(Loader):
    """Makes an empty package, which runs its own code when something is asked of it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return PutOff(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "transformers":
            module.__version__ = version("transformers")  # type: ignore[attr-defined]


class There(Loader):
    """Gives a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        pass


class PutOff(ModuleType):
    """A package whose parts can be imported, and whose own names wake it."""

    @property
    def sleeps(self) -> bool:
        return self.__spec__ is not None and isinstance(self.__spec__.loader, Later)

    def __getattr__(self, name: str) -> Any:
        package = self.__name__
        if name.startswith("__"):
            raise AttributeError(name)
        if self.sleeps:
            if name in STAND_INS.get(package, ()):
                return STAND_INS[package][name]
            parts = [home for home, names in HOMES.items() if name in names] if package == "transformers" else []
            if parts:
                return getattr(importlib.import_module(f"{package}.{parts[0]}"), name)
            is_free = hasattr(self, "__path__") and f"{package}." not in WHOLE
            if is_free and find_spec(f"{package}.{name}") is not None:
                return importlib.import_module(f"{package}.{name}")
            wake(self)
        real = sys.modules[package]  # a package may put another in its place
        if real is self and name not in self.__dict__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(real, name)


def _woken_part(name: str) -> ModuleSpec | None:
    """Of a package whose parts need it, woken for that: the part that it has imported by itself, if it has."""
    package = sys.modules[next(one for one in PUT_OFF if name.startswith(f"{one}."))]
    if not (isinstance(package, PutOff) and package.sleeps):
        return None
    wake(package)
    part = sys.modules.get(name)
    if part is None or part.__spec__ is None:
        return None
    return ModuleSpec(name, There(part), origin=part.__spec__.origin, is_package=hasattr(part, "__path__"))


def wake(package: ModuleType) -> None:
    """Run the code of a package that was put off."""
    spec = package.__spec__
    assert spec is not None
    assert isinstance(spec.loader, Later)
    spec.loader = package.__loader__ = spec.loader.loader
    spec.loader.exec_module(package)
