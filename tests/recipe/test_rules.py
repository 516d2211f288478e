"""The rules of a recipe: each is parsed once, and keeps the text that a dataset records."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.errors import RecipeError
from shardprep.recipe import recipe as recipes
from shardprep.recipe.recipe import make_recipe, stored_recipe
from tests.support.builders import jpeg
from tests.support.paths import data_rows

RULES = data_rows("recipe", "rules")


def test_a_build_parses_each_rule_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(key: str, parse: Any) -> Any:
        def parsed(text: Any) -> Any:
            calls[key] += 1
            return parse(text)

        return parsed

    parsers = {key: counted(key, parse) for key, parse in recipes._PARSERS.items()}
    monkeypatch.setattr(recipes, "_PARSERS", parsers)
    folder = tmp_path / "source" / "images"
    folder.mkdir(parents=True)
    for name in "abcd":
        (folder / f"{name}.jpg").write_bytes(jpeg(seed=ord(name)))
    rows = "a,cat,a\nb,dog,a\nc,cat,b\nd,dog,b\n"
    (tmp_path / "source/labels.csv").write_text(f"id,label,fold\n{rows}")
    (tmp_path / "source/more.csv").write_text("id,age\na,1\n")
    given: dict[str, Any] = dict(RULES, group="folder")
    made = shardprep.build(tmp_path / "source", tmp_path / "out", workers=1, **given)
    assert calls == dict.fromkeys(parsers, 1)
    options = json.loads((made.path / "manifest.json").read_text())["fingerprint"]["options"]
    assert {key: options[key] for key in given} == given


def test_a_recipe_keeps_the_text_of_its_rules() -> None:
    recipe = make_recipe({"source": "x.zip", **RULES}, "t")
    recorded = recipe.fingerprint_options()
    assert {key: recorded[key] for key in RULES} == RULES
    again = stored_recipe({**recorded, "source": "x.zip"})
    assert (again, again.rules) == (recipe, recipe.rules)


def test_other_rules_leave_the_rest_as_parsed() -> None:
    recipe = make_recipe({"source": "x.zip", **RULES}, "t")
    other = recipe.with_rules(masks="{stem}_mask.png")
    assert other.rules.masks.kind == "pattern"
    assert other.rules.labels is recipe.rules.labels


@pytest.mark.parametrize(("key", "text"), data_rows("recipe", "malformed_rules"))
def test_a_malformed_rule_is_an_error_of_its_option(key: str, text: str) -> None:
    with pytest.raises(shardprep.RecipeError) as error:
        make_recipe({"source": "x.zip", key: text}, "shardprep.toml")
    assert str(error.value).startswith(f"shardprep.toml: {key}: ")
    with pytest.raises(shardprep.RecipeError) as error:
        make_recipe({}, "shardprep.toml", {"source": "x.zip", key: text})
    assert str(error.value).startswith(f"--{key.replace('_', '-')}: ")


def test_other_words_for_splits_are_the_usual_names() -> None:
    """In every rule of `--split`, as in folders and in cells of tables."""
    for text, splits in {
        "val=0.2": {"train", "validation"},
        "training=0.8,testing=0.2": {"train", "test"},
        "column:fold:0=val,1=dev,*=train": {"train", "validation"},
        "list:valid=a.txt,train=*": {"train", "validation"},
        "held=0.2": {"train", "held"},
    }.items():
        rule = make_recipe({"source": "x.zip", "split": text}, "t").rules.split
        stated = rule.ratios or rule.places.values() or (split for _, split in rule.lists)
        assert {*stated} == splits
    rule = make_recipe({"source": "x.zip", "split": "roots:val=a,test=b"}, "t").rules.split
    assert rule.places == {"a": "validation", "b": "test"}
    assert rule.notes == ["--split: val is stored as the split validation"]


def test_ratios_that_leave_no_image_in_train_are_a_note() -> None:
    rule = make_recipe({"source": "x", "split": "validation=0.8,test=0.2"}, "x").rules.split
    assert rule.notes == ["the ratios validation=0.8,test=0.2 leave no image in train"]
    rule = make_recipe({"source": "x", "split": "validation=0.8,test=0.1"}, "x").rules.split
    assert rule.notes == []
    with pytest.raises(RecipeError, match="name each split once"):
        make_recipe({"source": "x.zip", "split": "val=0.1,validation=0.1"}, "t")
