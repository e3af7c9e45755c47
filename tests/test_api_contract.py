"""Every public name of the contract, compared mechanically with its recorded signature."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest

import unikernels

CONTRACT = json.loads((Path(__file__).parent / "contract" / "deepgemm_signatures.json").read_text())
PUBLIC = {name: entry for name, entry in CONTRACT.items() if entry.get("exported_top_level", True)}


def _resolve(name):
    parts = name.split(".")
    target = importlib.import_module(".".join(["unikernels", *parts[:-1]])) if len(parts) > 1 else unikernels
    return getattr(target, parts[-1])


def _plain(default):
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize("name", PUBLIC)
def test_signature(name):
    entry = PUBLIC[name]
    target = _resolve(name)
    if name == "epilogue.Epilogue":
        return  # a base class that cannot be constructed
    parameters = inspect.signature(target).parameters
    expected = entry["params"]
    names = [parameter["name"] for parameter in expected]
    positional = [
        one.name
        for one in parameters.values()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY, one.VAR_POSITIONAL)
    ]
    assert positional == [one["name"] for one in expected if not one.get("keyword_only")]
    for one in expected:
        ours = parameters[one["name"]]
        if one.get("var_positional"):
            assert ours.kind is ours.VAR_POSITIONAL
        elif one["required"]:
            assert ours.default is inspect.Parameter.empty, one["name"]
        else:
            assert _plain(ours.default) == one["default"], one["name"]
        for alias in one.get("aliases", ()):
            assert parameters[alias].kind is inspect.Parameter.KEYWORD_ONLY, alias
    aliases = {alias for one in expected for alias in one.get("aliases", ())}
    extra = set(parameters) - set(names) - aliases
    assert not extra, f"parameters outside the contract: {extra}"


@pytest.mark.parametrize("name", [name for name, entry in PUBLIC.items() if entry["kind"] == "alias"])
def test_alias_is_the_same_object(name):
    assert _resolve(name) is _resolve(PUBLIC[name]["alias_of"])


@pytest.mark.parametrize("name", [name for name, entry in PUBLIC.items() if entry["kind"] != "alias"])
def test_docstring(name):
    assert inspect.getdoc(_resolve(name)), f"{name} has no docstring"


def test_all_lists_every_top_level_name():
    missing = {name for name in PUBLIC if "." not in name} - set(unikernels.__all__)
    assert not missing
