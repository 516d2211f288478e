from collections import Counter
from pathlib import Path

import pytest

from shardprep.catalog.catalog import Catalog
from shardprep.errors import QuestionError
from tests.catalog.builders import VOC, catalog
from tests.support.builders import jpeg, write_folder
from tests.support.first_contact import outcome
from tests.support.layouts import expanded
from tests.support.scenes import picture


def planned(folder: Path, keys: list[str], others: dict[str, bytes] | None = None) -> Catalog:
    """Return the catalog of pictures, each of its own scene, and other files."""
    members = {key: picture("scene", key, key) for key in keys} | (others or {})
    return catalog(folder, members)


def splits(plan: Catalog) -> dict[str, int]:
    return dict(Counter(item.split for item in plan.items))


def names(pattern: str, *words: str) -> list[str]:
    return [pattern.format(word, i) for word in words for i in range(4)]


@pytest.mark.parametrize(
    ("train", "test", "split"),
    [
        ("seg_train/seg_train", "seg_test/seg_test", "test"),
        ("rps", "rps-test-set", "test"),
        ("imagesTr", "imagesTs", "test"),
        ("traincrop", "testcrop", "test"),
        ("SET_train_HR", "SET_valid_HR", "validation"),
        ("SET-TR", "SET-VD", "validation"),
        ("images_background", "images_evaluation", "test"),
    ],
)
def test_a_word_in_the_name_of_a_folder_is_a_split_beside_others(
    tmp_path: Path, train: str, test: str, split: str
) -> None:
    keys = [*names(train + "/{}/{}.jpg", "cat", "dog"), *names(test + "/{}/{}.jpg", "cat", "dog")]
    plan = planned(tmp_path, keys)
    assert splits(plan) == {"train": 8, split: 8}
    assert plan.label_names == ("cat", "dog")


def test_a_folder_without_classes_beside_those_with_classes_is_not_a_class(tmp_path: Path) -> None:
    keys = [*names("seg_train/{}/{}.jpg", "cat", "dog"), *names("seg_test/{}/{}.jpg", "cat", "dog")]
    plan = planned(tmp_path, [*keys, "seg_pred/seg_pred/1.jpg", "seg_pred/seg_pred/2.jpg"])
    assert splits(plan) == {"train": 8, "test": 8, "pred": 2}
    assert plan.label_names == ("cat", "dog")


@pytest.mark.parametrize(
    "classes",
    [
        ("pipette", "test tube"),
        ("model_car", "model_train"),
        ("de", "te", "tr"),
        ("query", "reply"),
        ("empty", "valid"),
    ],
)
def test_a_class_that_has_a_word_of_a_split_stays_a_class(
    tmp_path: Path, classes: tuple[str, ...]
) -> None:
    plan = planned(tmp_path, names("lab/{}/{}.jpg", *classes))
    assert splits(plan) == {"train": 4 * len(classes)}
    assert plan.label_names == classes


_EVERY = "cat/0 cat/1 cat/2 cat/3 dog/0 dog/1 dog/2 dog/3"


@pytest.mark.parametrize(
    ("lists", "expected", "note"),
    [
        ({"meta/train.txt": "cat/0 cat/1 dog/0 dog/1", "meta/test.txt": "cat/2 cat/3 dog/2 dog/3",
          "meta/classes.txt": "cat dog"},
         {"train": 4, "test": 4}, "list:train=meta/train.txt,test=meta/test.txt"),
        ({"test_list.txt": "cat/2.jpg,0 dog/2.jpg,1"}, {"train": 6, "test": 2},
         "train is the rest"),
        ({"train.txt": "0.jpg 1.jpg", "test.txt": "2.jpg 3.jpg"}, {"train": 8},
         "train.txt, test.txt not used as splits: id '0.jpg' fits several images"),
        ({"train.txt": _EVERY, "test.txt": _EVERY}, {"train": 8},
         "not used as splits: images/cat/0.jpg, images/cat/1.jpg and 6 more are in several lists"),
    ],
    ids=["lists of nearly all images", "a list of test leaves the others to train",
         "names that several classes have", "lists that share images"],
)  # fmt: skip
def test_lists_named_by_splits_are_used_or_noted(
    tmp_path: Path, lists: dict[str, str], expected: dict[str, int], note: str
) -> None:
    texts = {
        name: text.replace(" ", "\n").replace(",", " ").encode() for name, text in lists.items()
    }
    plan = planned(tmp_path, names("images/{}/{}.jpg", "cat", "dog"), texts)
    assert splits(plan) == expected
    assert any(note in one for one in plan.findings)


@pytest.mark.parametrize("form", ["train/{}.xml", "{}.json", "labels/{}.txt"])
def test_lists_of_annotation_files_name_their_images(tmp_path: Path, form: str) -> None:
    lists = {
        f"{split}.txt": "\n".join(form.format(i) for i in several).encode()
        for split, several in {"train": range(6), "test": range(6, 9)}.items()
    }
    keys = [f"images/{i}.jpg" for i in range(9)]
    assert splits(planned(tmp_path / "1", keys, lists)) == {"train": 6, "test": 3}
    others = {name: text.replace(b".", b".mp") for name, text in lists.items()}
    assert splits(planned(tmp_path / "2", keys, others)) == {"train": 9}


def test_lists_are_used_with_stated_labels_too_and_noted_if_they_leave_images_out(
    tmp_path: Path,
) -> None:
    keys = names("images/{}/{}.jpg", "cat", "dog")
    members = {key: picture("scene", key, key) for key in keys}
    lists = {
        "train.txt": b"cat/0\ncat/1\ndog/0\ndog/1\n",
        "test.txt": b"cat/2\ncat/3\ndog/2\ndog/3\n",
    }
    for options in ({"labels": "folder"}, {"labels": "none"}):
        plan = catalog(tmp_path / options["labels"], members | lists, **options)
        assert splits(plan) == {"train": 4, "test": 4}
    lists = {"train.txt": b"cat/0\n", "valid.txt": b"cat/1\n", "test.txt": b"dog/1\n"}
    plan = catalog(tmp_path / "few", members | lists, labels="folder")
    assert splits(plan) == {"train": 8}
    rule = "--split list:train=train.txt,validation=valid.txt,test=test.txt"
    assert any(
        f"all images are in train; there may be splits: {rule}" in one for one in plan.findings
    )


def test_the_longest_lists_of_each_split_are_used_if_they_name_all_images_once(
    tmp_path: Path,
) -> None:
    keys = names("photos/{}/{}.jpg", "bus", "cab", "car", "van")
    lists = {"train_list.txt": keys[:8], "test_8.txt": keys[9:12] + keys[13:16]}
    lists |= {"test_4.txt": keys[9:12], "test_4_query.txt": keys[8:9]}
    lists["test_8_query.txt"] = [keys[8], keys[12]]
    files = {f"lists/{name}": "\n".join(own).encode() for name, own in lists.items()}
    plan = planned(tmp_path / "1", keys, files)
    assert splits(plan) == {"train": 8, "test": 6, "query": 2}
    files["lists/test_4.txt"] += b"\n" + keys[8].encode()  # two splits have this image
    found = outcome(write_folder(tmp_path / "2", {k: jpeg(16, 16, i) for i, k in enumerate(keys)}
                                 | files), {})  # fmt: skip
    assert "query=" not in found.error


def test_a_list_of_some_train_images_is_a_question(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=r"list:train=train\.txt,test=\*"):
        planned(tmp_path, names("{}/{}.jpg", "cat", "dog"), {"train.txt": b"cat/0\ndog/0\n"})


def test_a_folder_named_test_among_classes_of_its_size_is_a_question(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=r"roots:train=tubes .*--labels folder"):
        planned(tmp_path, names("tubes/{}/{}.jpg", "blank", "control", "test"))


def test_a_folder_called_evaluation_is_test_beside_one_for_validation(tmp_path: Path) -> None:
    classes = [f"{name}/{i}" for name in ("cat", "dog") for i in range(4)]
    plan = planned(
        tmp_path / "1",
        [f"{one}/{key}.jpg" for one in ("training", "validation", "evaluation") for key in classes],
    )
    assert splits(plan) == {"train": 8, "validation": 8, "test": 8}
    plan = planned(
        tmp_path / "2",
        [f"{one}/{key}.jpg" for one in ("training", "evaluation") for key in classes],
    )
    assert splits(plan) == {"train": 8, "validation": 8}


def test_a_list_of_trainval_is_of_train_and_the_rest_is_a_question(tmp_path: Path) -> None:
    """Images in no list would be trained on, if only the list of test were read."""
    members = {f"JPEGImages/{i}.jpg": jpeg(48, 64, seed=i) for i in range(4)}
    members |= {f"Annotations/{i}.xml": VOC for i in range(4)}
    members |= {"ImageSets/Main/trainval.txt": b"0\n1\n", "ImageSets/Main/test.txt": b"2\n"}
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path / "asked", members)
    options = dict(caught.value.choices[-1].options)
    assert "rest is left out" in caught.value.choices[-1].why
    made = catalog(tmp_path / "made", members, **options)
    splits = {item.key[-5]: item.split for item in made.items}
    assert splits == {"0": "train", "1": "train", "2": "test"}
    members["ImageSets/Main/train.txt"], members["ImageSets/Main/val.txt"] = b"0\n", b"1\n3\n"
    both = catalog(tmp_path / "both", members)  # the list of trainval is their sum
    splits = {item.key[-5]: item.split for item in both.items}
    assert splits == {"0": "train", "1": "validation", "2": "test", "3": "validation"}


def test_two_lists_for_each_split_that_name_other_images_are_used_together(tmp_path: Path) -> None:
    """Those of the same trial, as RegDB has them for two cameras."""
    members, lists = dict[str, bytes](), dict[str, bytes]()
    for camera in ("rgb", "ir"):
        keys = [f"{camera}/{number}/{camera}_{number}.jpg" for number in range(1, 7)]
        members |= {key: jpeg(16, 16, i) for i, key in enumerate(keys)}
        for trial, order in (("1", keys), ("2", keys[::-1])):
            lists[f"idx/train_{camera}_{trial}.txt"] = "\n".join(order[:4]).encode()
            lists[f"idx/test_{camera}_{trial}.txt"] = "\n".join(order[4:]).encode()
    found = outcome(write_folder(tmp_path, members | lists), {})
    for trial, own in (("1", "12"), ("2", "65")):
        files = [
            f"{s}=idx/{s}_{camera}_{trial}.txt"
            for camera in ("ir", "rgb")
            for s in ("train", "test")
        ]
        assert f"--split list:{','.join(files)} (2 lists for each split name 12" in found.error
        facts = outcome(tmp_path, {"labels": "none", "split": f"list:{','.join(files)}"}).facts
        assert len(facts) == 12
        assert {facts[f"{c}/{n}/{c}_{n}.jpg"]["split"] for c in ("rgb", "ir") for n in own} == {
            "train"
        }


def test_lists_may_name_masks_and_missing_images(tmp_path: Path) -> None:
    photos = [f"images/{i}.jpg" for i in range(8)]
    masks = {f"masks/{i}.png": picture("ids", "m.png", f"images/{i}.jpg") for i in range(8)}
    lists = {
        "train.txt": "".join(f"{i}.png\n" for i in range(5)).encode(),
        "test.txt": b"5.png\n6.png\n7.png\n90.png\n91.png\n",
    }
    assert splits(planned(tmp_path, photos, masks | lists)) == {"train": 5, "test": 3}


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("train/photos/{training,validation}", {"train": 4, "validation": 4, "test": 4}),
        ("train/photos/{training,more}", {"train": 8, "test": 4}),
        ("train/{bus,train,validation}", {"train": 12, "test": 4}),
        ("{train,train/photos/validation}", {"train": 8, "test": 4}),
    ],
)
def test_splits_below_a_folder_of_a_split_count_if_all_its_images_are_in_them(
    tmp_path: Path, folder: str, expected: dict[str, int]
) -> None:
    keys = [f"{one}/{i}.jpg" for one in expanded(folder) for i in range(4)]
    keys += [f"test/photos/test/{i}.jpg" for i in range(4)]
    found = outcome(write_folder(tmp_path, {key: picture("scene", key, key) for key in keys}), {})
    assert Counter(one["split"] for one in found.facts.values()) == expected, found.error


def test_lists_of_several_domains_are_used_together(tmp_path: Path) -> None:
    keys, lists = list[str](), dict[str, bytes]()
    for domain in ("clipart", "real", "sketch"):
        own = names(domain + "/{}/" + domain + "_{}.jpg", "cat", "dog")
        keys += own
        lines = [f"{name} {int('dog' in name)}" for name in own]
        lists |= {f"{domain}_train.txt": "\n".join(lines[::2]).encode(),
                  f"{domain}_test.txt": "\n".join(lines[1::2]).encode()}  # fmt: skip
    assert splits(planned(tmp_path, keys, lists)) == {"train": 12, "test": 12}


def test_pictures_of_a_folder_that_no_fold_names_are_no_images(tmp_path: Path) -> None:
    keys = [
        f"set/images/{name}/{name}{i}.png"
        for name in ("BEANS", "CAKE", "CORN", "TEA")
        for i in range(5)
    ]
    lists = {f"set/folds/{split}{n}.txt": "".join(
                 f"{key[11:]}\n" for i, key in enumerate(keys)
                 if (i % 5 == n) == (split == "test")).encode()
             for n in range(3) for split in ("train", "test")}  # fmt: skip
    with pytest.raises(QuestionError) as error:
        planned(tmp_path, [*keys, "set/plots/1.png", "set/plots/2.png"], lists)
    found = [one.flags for one in error.value.choices]
    assert "--exclude 'set/plots/*' --split train=1" in found


def test_the_first_line_of_a_list_in_csv_may_name_an_image(tmp_path: Path) -> None:
    members = {f"images/{i}.jpg": picture("scene", "a.jpg", f"{i}") for i in range(8)}
    members |= {f"masks/{i}.png": picture("mask", "a.png", f"{i}") for i in range(8)}
    lines = {"train": range(6), "test": (6, 7)}
    lists = {f"{one}.csv": "".join(f"{i}.jpg,{i}.png\n" for i in own) for one, own in lines.items()}
    made = catalog(tmp_path, members | {name: text.encode() for name, text in lists.items()})
    assert splits(made) == {"train": 6, "test": 2}


def test_lists_of_two_sets_that_name_all_images_together_are_used_together(tmp_path: Path) -> None:
    members, lists = dict[str, bytes](), dict[str, bytes]()
    for kind in ("veg200", "fru92"):
        names = [f"{kind[0]}{label}/{i}.jpg" for label in "ab" for i in range(6)]
        members |= {f"{kind}_images/{name}": jpeg(16, 16, i) for i, name in enumerate(names)}
        for split, own in (("train", names[::2]), ("test", names[1::2])):
            lists[f"{kind}_lists/{kind[:3]}_{split}.txt"] = "\n".join(own).encode()
    found = outcome(write_folder(tmp_path, members | lists), {})
    assert not found.error
    facts = {key: fact["split"] for key, fact in found.facts.items()}
    assert facts["veg200_images/va/0.jpg"] == facts["fru92_images/fb/2.jpg"] == "train"
    assert facts["veg200_images/vb/1.jpg"] == facts["fru92_images/fa/5.jpg"] == "test"
    assert len(facts) == len(members)
