"""Small corpora, tokenizers and packed folders for the tests of training."""

import json

from train.data.corpus import Corpus, Source
from train.pack import pack_corpus
from train.tokenizer import save_tokenizer, train_tokenizer


def write_lines(path, *rows):
    """Writes a line of JSON a row and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_corpus(root):
    """Writes sixty stories and twenty-one chats below `root` and returns the corpus of both."""
    stories = [{"text": f"Once there were {i} foxes. They ran away."} for i in range(60)]
    chats = [{"turns": [f"Is {i} odd?", "I think so.", "Bye."]} for i in range(20)]
    write_lines(root / "stories" / "a.jsonl", *stories)
    write_lines(root / "chats.jsonl", *chats, {"prompt": "Who?", "response": "A fox."})
    sources = (Source("stories", 2, paths=("stories",)), Source("chats", paths=("chat*.jsonl",)))
    return Corpus(sources=sources, held_out=0.2)


def make_tokenizer(folder):
    """Writes a tokenizer of at most 290 ids and returns its folder."""
    save_tokenizer(train_tokenizer(["Once there were foxes. They ran away. I think so."] * 3, 290), folder)
    return folder


def make_packed(root, **options):
    """Writes corpus, tokenizer and shards below `root`; returns the shards' folder and the tokenizer's."""
    corpus, tokenizer = write_corpus(root / "data"), make_tokenizer(root / "tokenizer")
    pack_corpus(corpus, root / "data", tokenizer, root / "packed", **options)
    return root / "packed", tokenizer
