from eval.drafting.task_contest import SHORT_SLOTS, Batch, Learner, batches_of, capacities_for, hold
from eval.prompts.task_prompts import Task
from eval.timing.measure import Ours
from jax_smash.methods import DraftOptions
from tests.eval.markov import ring
from tests.tiny import tiny_model

NEW = 9


def learner(model, *, size=1):
    def make(slots):
        draft = DraftOptions(tree="chain-2")
        return Ours("recycling", model, slots=slots, max_new_tokens=NEW, batch_size=size, draft=draft, carries=True)

    return Learner("recycling", "chain-2", make, [SHORT_SLOTS], NEW)


def test_a_batch_is_of_one_task_and_tasks_take_turns():
    tasks = [Task("a", [[1], [2], [3]]), Task("b", [[4]])]
    assert batches_of(tasks, 2) == [Batch("a", [[1], [2]]), Batch("b", [[4]]), Batch("a", [[3]])]


def test_a_cache_has_room_for_its_prompts_and_is_no_larger_than_the_context():
    short, long = Task("a", [[1] * 20]), Task("b", [[1] * 600])
    assert capacities_for([short], 64, 8192) == [SHORT_SLOTS]
    assert capacities_for([short, long], 64, 8192) == [SHORT_SLOTS, 768]
    assert capacities_for([short, long], 64, 700) == [SHORT_SLOTS, 700]
    assert capacities_for([short], 64, 128) == [128]


def test_what_a_batch_teaches_is_known_to_the_next_and_forgotten_at_the_next_repeat():
    model = ring(9)
    contender = learner(model)
    batches = [Batch("t", [[0]]), Batch("t", [[0]])]
    contender.warm_up([b.prompts for b in batches])
    told = []
    runs = hold([contender], batches, repeats=2, settle_seconds=0, on_batch=lambda: told.append(1))
    assert len(told) == 4
    forwards = [[sample.forwards for sample in repeat] for repeat in runs[contender.name]]
    # Eight letters behind the prefill's one, a forward each; then three a forward.
    assert forwards == [[8, 3], [8, 3]]
    assert contender.facts()["nodes"] == 2


def test_what_steps_take_is_forgotten_with_everything_else_unless_it_is_kept():
    ours = Ours("lookup", tiny_model(), slots=SHORT_SLOTS, max_new_tokens=NEW, batch_size=1, carries=True)
    follower = ours.method.follower
    ours.start_over(keep_costs=True)
    assert ours.method.follower is follower
    ours.start_over()
    assert ours.method.follower is not follower


def test_a_batch_that_is_not_full_counts_its_own_rows():
    contender = learner(ring(9), size=3)
    contender.warm_up([[[0]]])
    sample = contender.run([[0], [3]])
    assert (len(sample.tokens), sample.started, sample.decoded) == (2, 2, 2 * (NEW - 1))
    assert sum(sample.forwards_by_row) == sample.forwards
    assert len(sample.forwards_by_row) == 2
