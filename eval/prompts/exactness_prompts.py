"""The prompts of an exactness run as tokens, none too long."""

from pathlib import Path

from eval.prompts.question_sets import spec_bench_questions, turn_tokens
from eval.prompts.shipped_prompts import shipped_prompts
from jax_smash.loading import Model
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.prompts import read_prompts
from jax_smash.serve.request import make_request


def shipped(model: Model, count: int | None, *, longest: int) -> list[list[int]]:
    """Returns pieces of the texts that come with the project, two thirds of `longest` tokens or more.

    Raises:
      ValueError: no count is given, or the texts give fewer.
    """
    if count is None:
        raise ValueError("num_prompts must be given where the prompts are the project's")
    return shipped_prompts(model, count, longest=longest)


def of_file(model: Model, path: Path, count: int | None, *, longest: int) -> list[list[int]]:
    """Returns the first prompts of a file, cut to `longest` tokens.

    Raises:
      ValueError: there are too few, or one is malformed or does not fit the model.
      OSError: the file cannot be read.
    """
    found = read_prompts(path)
    if count is not None and len(found) < count:
        raise ValueError(f"num_prompts must be at most {len(found)}, the prompts of the file; got {count}")
    request = make_request(
        model,
        found[:count],
        max_new_tokens=1,
        sampling=SamplingOptions(),
        stop=(),
        json_schema=None,
        regex=None,
        seed=0,
        chat=False,
        slots=None,
    )
    return [tokens[:longest] for tokens in request.tokens]


def of_spec_bench(model: Model, path: Path, count: int | None, *, longest: int, chat: bool) -> list[list[int]]:
    """Returns the first turns of Spec-Bench's questions, of each task in turn, their texts cut to fit `longest` tokens.

    Raises:
      ValueError: there are too few, the file is not Spec-Bench's, or `longest` has no room for the chat template.
      OSError: the file cannot be read.
    """
    questions = spec_bench_questions(path, count=count)
    return [shortened(model, question.turns[0], longest=longest, chat=chat) for question in questions]


def shortened(model: Model, text: str, *, longest: int, chat: bool) -> list[int]:
    """Returns the tokens of a user's message, which loses its end where there would be more than `longest`.

    Args:
      model: whose tokenizer and chat template are used.
      text: of the message.
      longest: tokens, those of the chat template included.
      chat: the message is put into the template; what the template puts behind it stays whole.

    Raises:
      ValueError: the template leaves no room for a token of the text, or the model has no tokenizer or no template.
    """
    found = turn_tokens(model, [text], [], chat=chat)
    if not chat:
        return found[:longest]
    pieces = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    kept = len(pieces)
    while len(found) > longest:
        # A text that is cut may be split otherwise: look again.
        kept -= max(len(found) - longest, 1)
        if kept < 1:
            raise ValueError(f"prompt_tokens must leave room for text in the chat template; got {longest}")
        cut = model.tokenizer.decode(pieces[:kept], skip_special_tokens=True)
        found = turn_tokens(model, [cut], [], chat=True)
    return found
