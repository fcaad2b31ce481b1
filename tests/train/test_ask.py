import json
import subprocess
import sys
from pathlib import Path

import pytest

from train.ask import main
from train.data.askings import ABOUT_PASSAGES, ABOUT_SENTENCES, ABOUT_TERMS, askings, passage_of, sections

BODY = "Foxes sleep in a den that they dig in a dry slope of the wood. They hunt when it is dark."
TEXT = f"Before.\n\n# Foxes\n\n{BODY}\n\n- an item\n\nTheir young are cubs.\n\n## Red deer\n\n{BODY}\n\n# Empty\n"
LONG = f"# A heading of far more than six words\n\n{BODY}\n"
FORMS = (*ABOUT_TERMS, *ABOUT_PASSAGES, *ABOUT_SENTENCES)


def test_sections_have_a_short_heading_and_paragraphs_that_are_no_lists():
    found = list(sections(f"{TEXT}\n{LONG}"))
    assert [section.term for section in found] == ["Foxes", "Red deer"]
    assert found[0].paragraphs == (BODY, "Their young are cubs.")


def test_a_passage_is_whole_paragraphs_but_the_first_may_be_cut():
    foxes = next(sections(TEXT))
    assert passage_of(foxes, 0, 1000) == f"{BODY}\n\nTheir young are cubs."
    assert passage_of(foxes, 0, len(BODY) + 22) == BODY
    assert passage_of(foxes, 0, 5) == "Foxes"


def test_prompts_differ_ask_about_the_texts_in_every_way_and_are_the_same_for_the_same_seed():
    found = list(sections(TEXT))
    made = askings(found, 60, letters=200, seed=3)
    assert len({*made}) == 60
    assert made == askings(found, 60, letters=200, seed=3) != askings(found, 60, letters=200, seed=4)
    begun = [form.partition("{")[0] for form in FORMS if not form.startswith("{")]
    assert all(any(prompt.startswith(begin) for prompt in made) for begin in begun)
    assert not any("{" in prompt for prompt in made)
    assert all(any(word in prompt for word in ("Foxes", "Red deer", "cubs")) for prompt in made)


def test_headings_that_stand_over_many_sections_name_nothing():
    many = list(sections("".join(f"# Summary\n\n{BODY} {i}\n\n" for i in range(3)) + f"# Foxes\n\n{BODY}"))
    assert not any("Summary" in prompt for prompt in askings(many, 20, letters=100, seed=0))
    with pytest.raises(ValueError, match="texts must have headings"):
        askings(many[:3], 1, letters=100, seed=0)
    with pytest.raises(ValueError, match="sections enough for 5000 different prompts; 1 gave"):
        askings(many, 5000, letters=100, seed=0)


def test_the_program_writes_what_regenerate_reads(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text(TEXT)
    (tmp_path / "texts/b.jsonl").write_text(json.dumps({"title": "Owls", "text": f"# Owls\n\n{BODY}"}) + "\n")
    command = [sys.executable, "-m", "train.ask", "--texts", "texts", "--count", "40", "--output", "out.jsonl"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = [json.loads(line)["prompt"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(asked) == 40
    assert any("Owls" in prompt for prompt in asked)
    assert any("Red deer" in prompt for prompt in asked)


def test_an_output_without_an_ending_is_a_folder_as_of_a_stage(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    main(tmp_path / "a.txt", 3, tmp_path / "asked", letters=200)
    assert len((tmp_path / "asked/prompts.jsonl").read_text().splitlines()) == 3
    with pytest.raises(FileExistsError, match="asked exists; choose another file"):
        main(tmp_path / "a.txt", 3, tmp_path / "asked", letters=200)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 0}, "count must be at least 1; got 0"),
        ({"letters": 39}, "letters must be at least 40; got 39"),
        ({"texts": "absent"}, "absent must be a .txt, .json or .jsonl file, or a folder of them; there is none"),
        ({"texts": "."}, "texts must have headings"),
        ({"output": "a.txt"}, "a.txt exists; choose another file"),
        ({"output": "absent/out.jsonl"}, "needs a folder absent; there is none"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_writes_nothing(tmp_path, monkeypatch, changes, said):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("No heading here.")
    given = {"texts": "a.txt", "count": 3, "output": "out.jsonl"} | changes
    with pytest.raises((ValueError, OSError), match=said):
        main(Path(given["texts"]), given["count"], Path(given["output"]), letters=given.get("letters", 200))
    assert not Path("out.jsonl").exists()
