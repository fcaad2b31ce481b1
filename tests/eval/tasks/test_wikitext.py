import pytest

from eval.tasks.wikitext import joined, wikitext_set

FILE = """ \n = Robert Boulter = \n \n Robert was born in 1984 @-@ 85 , in " London " . \n = = Career = = \n He had \
1 @,@ 000 roles ( two of them good ) ; it 's so . \n \n = 2000 – 2005 = \n \n The second . \n"""
TEXT = """ = Robert Boulter =\n\nRobert was born in 1984-85, in "London".\n== Career ==\nHe had \
1,000 roles (two of them good); it's so.\n\n"""


def test_articles_begin_at_titles_and_not_at_headings(tmp_path):
    path = tmp_path / "valid.txt"
    path.write_text(FILE, encoding="utf-8")
    found = wikitext_set(str(path), count=None)
    assert [d.original.split("\n")[0] for d in found.documents] == [" = Robert Boulter = ", " = 2000 – 2005 = "]
    assert "".join(d.original for d in found.documents) == FILE.removeprefix(" \n")
    assert [d.name for d in found.documents] == [f"{path}, article 1", f"{path}, article 2"]
    assert found.documents[0].text == TEXT
    assert len(wikitext_set(str(path), count=1).documents) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A : b ; c . D ! E ? F , g", "A: b; c. D! E? F, g"),
        ("4 @.@ 5 and 6 @-@ 7", "4.5 and 6-7"),
        ("[ a ] { b } ( c ) ' d '", "[a] {b} (c) 'd'"),
        ("20 ° C", "20°C"),
        ("= = = Sub = = = \n x", "=== Sub ===\nx"),
        ("the cats ' bed", "the cats' bed"),
        ("over N times", "over 1 times"),
    ],
)
def test_the_spaces_around_marks_go(text, expected):
    assert joined(text) == expected


def test_a_file_without_titles_or_of_too_few_articles_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Once upon a time . \n")
    with pytest.raises(ValueError, match=r'a\.txt must have articles that begin with a title " = … = "; got none'):
        wikitext_set(str(path), count=None)
    path.write_text(FILE, encoding="utf-8")
    with pytest.raises(ValueError, match="count must be at most 2"):
        wikitext_set(str(path), count=3)
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        wikitext_set(str(tmp_path / "missing.txt"), count=None)
