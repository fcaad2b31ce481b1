import re
import subprocess
import sys

import jax.numpy as jnp
import pytest

from jax_smash import SamplingOptions
from jax_smash.decode.loop import decode
from jax_smash.methods import DraftOptions, make_method
from jax_smash.serve.session import Session
from jax_smash.tracing import check_folder
from tests.tiny import tiny_model


@pytest.mark.parametrize(
    ("method", "draft", "phases"),
    [
        ("ar", DraftOptions(), {"forward", "choose", "commit"}),
        ("recycling", DraftOptions(tree="chain-2"), {"draft", "verify", "choose", "commit", "learn"}),
    ],
)
def test_the_phases_of_a_step_have_names(method, draft, phases):
    model = tiny_model(num_layers=1, layer_kinds=("full",))
    made = make_method(model, method, draft=draft)
    rows = Session(model, made, slots=32, max_new_tokens=8, sampling=[SamplingOptions()], seeds=[0])
    lowered = decode.lower(made.strategy, made.params, rows.state, jnp.asarray(4, jnp.int32))
    named = {
        name
        for path in re.findall(r'"jit\(decode\)/([^"]*)"', lowered.as_text(debug_info=True))
        for name in path.split("/")
    }
    assert phases <= named
    assert "micro_step" not in named


PROGRAM = """
import sys
from pathlib import Path
import jax.numpy as jnp
from jax_smash.tracing import traced
with traced(Path(sys.argv[1])):
    (jnp.ones(8) + 1).block_until_ready()
with traced(None):
    pass
"""


def test_a_trace_is_written(tmp_path):
    # In a process of its own: JAX's profiler also looks at devices that other tests only compile for.
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "trace")], check=True, timeout=120)
    assert [*(tmp_path / "trace").rglob("*.xplane.pb")]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file must be a folder to write a trace to; it is a file"):
        check_folder(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent to make trace in"):
        check_folder(tmp_path / "absent" / "trace")
    check_folder(tmp_path / "new")
    check_folder(None)
