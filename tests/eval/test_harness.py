import importlib.util
import json

import pytest

from eval.harness import Settings, main
from tests.model_directory import write_model

INSTALLED = importlib.util.find_spec("lm_eval") is not None
TASK = """task: jars
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{goal}}}}\\nAnswer:"
doc_to_choice: ["Twist it.", "Sing."]
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@pytest.mark.skipif(INSTALLED, reason="the harness is installed here")
def test_without_the_harness_the_user_is_told_what_to_install(tmp_path):
    with pytest.raises(ImportError, match=r"not installed: pip install 'jax_smash\[lm-eval\]'"):
        main(Settings(tasks=("piqa",), json=tmp_path / "a.json"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not INSTALLED, reason="needs the extra lm-eval")
def test_the_harness_runs_a_task_of_its_own_kind(tmp_path):
    model = write_model(tmp_path / "model", num_hidden_layers=1)
    data, folder = tmp_path / "jars.jsonl", tmp_path / "tasks"
    folder.mkdir()
    data.write_text("".join(json.dumps({"goal": f"Open jar {i}.", "label": i % 2}) + "\n" for i in range(6)))
    (folder / "jars.yaml").write_text(TASK.format(data=data))
    out = tmp_path / "out.json"
    main(Settings(tasks=("jars",), model=str(model), task_folder=folder, limit=4, json=out), [])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["task"], row["metric"], row["n"]) for row in rows] == [("jars", "acc", 4), ("jars", "acc_norm", 4)]
    assert all(0 <= row["score"] <= 1 for row in rows)
