import numpy as np

from eval.drafting.drafting_cost import BEHIND, STEPS, Timed
from tests.chimera import PlainChimera, random_drafter
from tests.jax_smash.draft.test_eagle import Chat, siblings, target

__all__ = ["siblings"]


def test_timed_steps_draft_along_the_text_and_keep_its_grams(siblings):
    chat = Chat(random_drafter(target()), method="chimera", plain=PlainChimera, gram_slots=STEPS)
    texts = np.random.default_rng(0).integers(0, 10, (2, 30)).tolist()
    own, _, pending = Timed(target(), chat.made, texts).call()()
    assert pending.tolist() == [text[-1] for text in texts]
    wide = own.grams.gram.shape[2]
    for row, text in enumerate(texts):
        roots = range(len(text) - BEHIND, len(text) - 1)
        order = np.argsort(np.asarray(own.grams.used[row]))
        # The prompt's last grams have left for those that end with each step's root.
        assert np.asarray(own.grams.gram[row])[order].tolist() == [text[i + 1 - wide : i + 1] for i in roots]
