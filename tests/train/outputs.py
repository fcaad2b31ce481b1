"""What a training run has left in its folder, so far."""

from train.run.checkpoint import newest_step
from train.run.loop import CHECKPOINTS, METRICS
from train.run.metrics import read_metrics


def losses(output):
    """Returns the losses, also of held-out text, by step and name."""
    lines = read_metrics(output / METRICS)
    return {(line["step"], name): line[name] for line in lines for name in ("loss", "held_out_loss") if name in line}


def newest(output):
    """Returns the step of the newest whole checkpoint; 0 before there is one."""
    return newest_step(output / CHECKPOINTS) or 0
