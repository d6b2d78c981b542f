"""The configuration object that ``auto_complete_config`` of a ``model.py`` fills in."""

from collections.abc import Mapping
from typing import Any, Final

from repoagent.nested_text import read_json

__all__ = ["ModelConfig"]

_SCHEDULERS: Final = ("sequence_batching", "ensemble_scheduling")


class ModelConfig:
    """A model configuration as a dictionary, with checked ways to add to it.

    Every method raises ``ValueError`` when what the model says contradicts what its configuration file says.
    """

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = read_json(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The live dictionary: what is written into it counts."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raise the batch size; it can never be set below what the file says."""
        given = self._model_config["max_batch_size"]
        if given > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {given}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Ask for dynamic batching, unless the file already has it."""
        for scheduler in _SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - the name is part of the interface
        """Add an input, or complete one of the same name: ``name``, ``data_type``, ``dims``, perhaps ``optional``."""
        self._add("input", dict(input), ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or complete one of the same name: ``name``, ``data_type``, ``dims``."""
        self._add("output", dict(output), ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, bool]) -> None:
        """Say whether the model is decoupled: ``{"decoupled": True}``."""
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for key, value in transaction_policy_dict.items():
            if key in policy and policy[key] != value:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                    f"already set to '{policy[key]}'."
                )
            policy[key] = value

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: dict[str, Any], known: tuple[str, ...]) -> None:
        self._check_properties(kind, tensor, known)
        for given in self._model_config.setdefault(kind, []):
            if given["name"] == tensor["name"]:
                self._check_agreement(kind, given, tensor)
                given.update(tensor)
                return
        self._model_config[kind].append(tensor)

    def _check_properties(self, kind: str, tensor: Mapping[str, Any], known: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        if set(tensor) - set(known):
            names = " and ".join([", ".join(f"'{name}'" for name in known[:-1]), f"'{known[-1]}'"])
            raise ValueError(f"{kind} '{tensor['name']}' {where} contains property other than {names}.")
        for required in ("data_type", "dims"):
            if required not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {where} is missing '{required}' property.")

    def _check_agreement(self, kind: str, given: Mapping[str, Any], tensor: Mapping[str, Any]) -> None:
        name = tensor["name"]
        if given.get("data_type", "TYPE_INVALID") not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {given['data_type']} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            if given.get(key) and key in tensor and given[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} but the model "
                    f"configuration specifies {key} {given[key]}"
                )
