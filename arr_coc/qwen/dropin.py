"""What other tools expect of a transformers model, for one that holds a stock model.

ARRCOCQwen is a PreTrainedModel by inheritance, so that pipelines, trainers and PEFT know it for one. What belongs to
the weights (config, generation config, embeddings, names of tied weights) is the stock model's own: there is no second
copy that could differ.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from huggingface_hub import HfApi
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    GenerationMixin,
    PreTrainedConfig,
    Qwen3VLPreTrainedModel,
)

from arr_coc.qwen.finding import EMBEDDED, could_be_on_a_hub
from arr_coc.qwen.storage import MODEL_TYPE

STOCK = ("lm_head.", "model.visual.", "model.language_model.")  # how names of a stock model's weights begin


class ARRCOCQwenConfig(PreTrainedConfig):
    """What an adapter's config.json says: who loads it. Its settings are in arr_coc_config.json."""

    model_type = MODEL_TYPE


def _method(name: str) -> Callable[..., Any]:
    """A method that the stock model answers."""

    def ask_stock(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.model, name)(*args, **kwargs)

    ask_stock.__name__ = name
    return ask_stock


def _state(name: str) -> property:
    """A value that the stock model holds, for reading and for writing."""
    return property(lambda self: getattr(self.model, name), lambda self, value: setattr(self.model, name, value))


class StockManners(Qwen3VLPreTrainedModel, GenerationMixin):
    """Stands before the stock model in `self.model` as if it were that model; private names are each one's own."""

    config_class = ARRCOCQwenConfig
    generation_config, _no_split_modules = _state("generation_config"), _state("_no_split_modules")
    get_input_embeddings, set_input_embeddings = _method("get_input_embeddings"), _method("set_input_embeddings")
    get_output_embeddings, set_output_embeddings = _method("get_output_embeddings"), _method("set_output_embeddings")
    resize_token_embeddings, tie_weights = _method("resize_token_embeddings"), _method("tie_weights")
    prepare_inputs_for_generation = _method("prepare_inputs_for_generation")
    set_attn_implementation = _method("set_attn_implementation")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model" or name.startswith("_") or not hasattr(self.model, name):
                raise
            return getattr(self.model, name)

    @property
    def all_tied_weights_keys(self) -> dict[str, str]:
        return {f"model.{name}": f"model.{tied}" for name, tied in self.model.all_tied_weights_keys.items()}

    @property
    def base_model(self) -> "Trunk":
        """The model without its head, as trainers call it."""
        return Trunk(self)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Weights of a stock model are taken as well, by their own names; the adapter stays as it is then."""
        stock = [name for name in state_dict if name.removeprefix(prefix).startswith(STOCK)]
        for name in stock:
            state_dict[f"{prefix}model.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        adapter = {name: own for name, own in self.state_dict().items() if stock and not name.startswith("model.")}
        state_dict.update({f"{prefix}{name}": own for name, own in adapter.items()})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: bool | str | None = None,
        save_base: bool | None = None,
        max_shard_size: int | str = "50GB",
        **commit: Any,
    ) -> Any:
        """Save into a repository of the hub, with the card that saving writes; `commit` is of HfApi.upload_folder.

        A base model that others cannot reach by its name goes along where `save_base` leaves it open.
        """
        base, hub = self.arr_coc_config.base_model, HfApi(token=token)
        whole = save_base if could_be_on_a_hub(base) or base in EMBEDDED else save_base is not False
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, save_base=whole, max_shard_size=max_shard_size)
            made = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
            said: dict[str, Any] = {"commit_message": "Upload ARRCOCQwen", **commit}
            return hub.upload_folder(repo_id=made, folder_path=folder, **said)


class Trunk:
    """The stock model without its head, on the tokens that are kept: a hidden state for each column of the caller's."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.owner).forward(self.owner, *args, head=False, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner.model.model, name)


def register(model_class: type[StockManners]) -> None:
    """Let transformers' Auto classes load what `save_pretrained` wrote of an adapter."""
    AutoConfig.register(MODEL_TYPE, ARRCOCQwenConfig, exist_ok=True)
    for auto in (AutoModel, AutoModelForImageTextToText):
        auto.register(ARRCOCQwenConfig, model_class, exist_ok=True)
