from eval.drafting.told_trees import told_tree


def test_a_name_stays_as_it_is_and_a_file_is_told_with_its_content(tmp_path):
    assert told_tree("tree-15") == "tree-15"
    file = tmp_path / "tree.json"
    file.write_text("[[0]]")
    before = told_tree(str(file))
    assert before.startswith("DATA/tree.json@")
    (tmp_path / "other").mkdir()
    moved = file.rename(tmp_path / "other/tree.json")
    assert told_tree(str(moved)) == before
    moved.write_text("[[1]]")
    assert told_tree(str(moved)) != before
