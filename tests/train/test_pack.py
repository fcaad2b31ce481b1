import json
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from tests.train.corpus_files import make_packed, make_tokenizer, write_corpus, write_lines
from train.data.corpus import Corpus, Source, split_documents
from train.data.documents import Document, read_documents
from train.data.rows import Packed
from train.pack import ANSWER, CIRCLE, encode, main, pack_corpus
from train.regenerate import document

BOS, EOS = 0, 1


@pytest.fixture
def packed(tmp_path):
    return make_packed(tmp_path)


def documents_of(folder, split):
    index = json.loads((folder / "index.json").read_text())
    found = []
    for source in index["sources"]:
        for shard in source[split]["shards"]:
            tokens, ends = np.load(folder / f"{shard}.tokens.npy"), np.load(folder / f"{shard}.documents.npy")
            found += [tuple(part.tolist()) for part in np.split(tokens, ends[:-1])]
    return found


def loaded(tokenizer):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer)


def test_every_document_is_packed_once_between_begin_and_end(packed):
    folder, _ = packed
    train, held_out = documents_of(folder, "train"), documents_of(folder, "held_out")
    assert len({*train}) + len({*held_out}) == len(train) + len(held_out) == 81
    assert not {*train} & {*held_out}
    assert all(document[0] == BOS and document[-1] == EOS for document in train + held_out)


def test_the_index_counts_what_is_there(packed):
    folder, _ = packed
    index = json.loads((folder / "index.json").read_text())
    assert [source["name"] for source in index["sources"]] == ["stories", "chats"]
    for split in ("train", "held_out"):
        documents = documents_of(folder, split)
        assert sum(source[split]["documents"] for source in index["sources"]) == len(documents)
        assert sum(source[split]["tokens"] for source in index["sources"]) == sum(map(len, documents))
    assert [*index["sources"][1]["sha256"]] == ["chats.jsonl"]


def test_texts_and_chats_come_back_from_their_tokens(packed):
    folder, tokenizer = packed
    texts = {loaded(tokenizer).decode(d) for split in ("train", "held_out") for d in documents_of(folder, split)}
    assert "<|bos|><|user|>Is 3 odd?<|end|><|assistant|>I think so.<|end|><|eos|>" in texts
    assert "<|bos|>Once there were 3 foxes. They ran away.<|eos|>" in texts


def test_a_passage_that_goes_on_has_no_end(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    going_on, ended = encode([Document("foxes", complete=False), Document("foxes")], tokenizer)
    assert going_on.tokens[-1] != EOS
    assert ended.tokens.tolist() == [*going_on.tokens.tolist(), EOS]


def test_a_models_own_answers_are_packed_to_the_letter_and_one_that_was_cut_has_no_end(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    said = "Use  arr[0] <i>now</i>…\n\n\n\nIt’s"
    messages = [{"role": "user", "content": "“Foxes” — [1]?"}, {"role": "assistant", "content": said}]
    rows = [{"messages": messages, "finish_reason": reason} for reason in ("stop_token", "length")]
    path = write_lines(tmp_path / "a.jsonl", *rows, {"text": f"Foxes {said}", "finish_reason": "length"})
    whole, cut, text = [tokenizer.decode(e.tokens) for e in encode(list(read_documents(path, passage=9)), tokenizer)]
    assert cut == f"<|bos|><|user|>“Foxes” — [1]?<|end|><|assistant|>{said}"
    assert whole == f"{cut}<|end|><|eos|>"
    assert text == f"<|bos|>Foxes {said}"
    with pytest.raises(ValueError, match="the last message must be the assistant's"):
        list(read_documents(write_lines(path, {"messages": messages[:1], "finish_reason": "length"}), passage=9))


def test_documents_are_packed_as_the_model_reads_them_and_end_once(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + '<|eos|>\n' }}{% endfor %}"
    messages = tuple({"role": role, "content": "foxes"} for role in ("user", "assistant"))
    text, chat = (
        tokenizer.decode(e.tokens) for e in encode([Document("foxes"), Document(messages=messages)], tokenizer)
    )
    assert tokenizer.bos_token_id == BOS
    assert (text, chat) == ("foxes<|eos|>", "foxes<|eos|>\nfoxes<|eos|>\n")


def test_a_tokenizer_without_an_end_ends_no_text(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    tokenizer.eos_token = None
    (made,) = encode([Document("foxes")], tokenizer)
    assert tokenizer.decode(made.tokens, skip_special_tokens=True) == tokenizer.decode(made.tokens[1:]) == "foxes"


def test_an_index_says_which_prompts_were_left_out_of_answers(tmp_path):
    make_tokenizer(tmp_path / "tokenizer")
    avoid = {"words": 13, "left_out": 2, "of": 40, "sha256": ["questions.jsonl 0123"]}
    chat = {"messages": [{"role": r, "content": "foxes"} for r in ("user", "assistant")], "finish_reason": "length"}
    for name, options in (("clean", {"avoid": avoid}), ("all", {})):
        write_lines(tmp_path / f"{name}.jsonl", chat | {"made_with": {"options": options}}, chat)
    write_lines(tmp_path / "texts.jsonl", {"text": "foxes"})
    sources = tuple(Source(name, paths=(f"{name}.jsonl",)) for name in ("texts", "clean", "all"))
    index = pack_corpus(Corpus(sources=sources, held_out=0), tmp_path, tmp_path / "tokenizer", tmp_path / "packed")
    assert index["left_out"] == [{"source": "clean", "file": "clean.jsonl", **avoid}]
    corpus = Corpus(sources=sources[::2], held_out=0)
    assert "left_out" not in pack_corpus(corpus, tmp_path, tmp_path / "tokenizer", tmp_path / "other")


@pytest.mark.parametrize("kind", ["chat", "text", "tokens"])
def test_answers_to_one_prompt_are_held_out_together(tmp_path, kind):
    model = SimpleNamespace(tokenizer=loaded(make_tokenizer(tmp_path / "tokenizer")))

    def answer(number, said):
        text = f"How many foxes are {number}?"
        prompt = {"chat": [{"role": "user", "content": text}], "text": text, "tokens": model.tokenizer(text).input_ids}
        found = SimpleNamespace(prompt=prompt[kind], text=f" {said}", token_ids=[said], finish_reason="stop_token")
        return document(model, found, chat=False)

    write_lines(tmp_path / "a.jsonl", *(answer(prompt, said) for prompt in range(40) for said in range(3)))
    corpus = Corpus(sources=(Source("answers", paths=("a.jsonl",)),), held_out=0.4)
    found = {"train": [], "held_out": []}
    for split, made in split_documents(corpus.sources[0], corpus, tmp_path):
        found[split].append((made.text or made.messages[0]["content"]).split("?")[0])
    assert {*found["train"]}.isdisjoint(found["held_out"])
    assert len(found["train"]) + len(found["held_out"]) == 120
    assert len({*found["train"], *found["held_out"]}) == 40
    assert len(found["held_out"]) > 9


def test_a_tokenizer_needs_only_what_ends_a_text(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    tokenizer.bos_token = tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "few")
    write_lines(tmp_path / "a.jsonl", {"text": "foxes"})
    corpus = Corpus(sources=(Source("texts", paths=("a.jsonl",)),), held_out=0)
    pack_corpus(corpus, tmp_path, tmp_path / "few", tmp_path / "packed")
    (document,) = documents_of(tmp_path / "packed", "train")
    assert document[0] != BOS
    assert document[-1] == EOS
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "none")
    with pytest.raises(ValueError, match="none must have an eos_token, which ends a text; got none"):
        pack_corpus(corpus, tmp_path, tmp_path / "none", tmp_path / "again")


@pytest.mark.parametrize("chat", [False, True])
def test_an_answers_tokens_are_known(tmp_path, chat):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    if chat:
        messages = ({"role": "user", "content": "Who ran? They or I?"}, {"role": "assistant", "content": "They"})
        document = Document(messages=messages, answers=("They",))
    else:
        document = Document("They ran. I think so. Who ran? They did.", answers=("They",))
    [encoded] = encode([document], tokenizer)
    assert tokenizer.decode(encoded.tokens[encoded.marks == ANSWER]).strip() == "They"
    assert "ran" in tokenizer.decode(encoded.tokens[: (encoded.marks == ANSWER).argmax()])


def test_each_of_several_answers_is_found_at_its_own_place(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    text = "Foxes ran. I ran. Who ran? I ran. Foxes? ran away"
    [encoded, without] = encode([Document(text, answers=("Foxes", "ran", "I", "ran")), Document(text)], tokenizer)
    assert tokenizer.decode(encoded.tokens[encoded.marks == ANSWER]).split() == ["Foxes", "ran", "I", "ran"]
    edges = np.diff(np.concatenate([[False], encoded.marks == ANSWER]).astype(int)) == 1
    before = [tokenizer.decode(encoded.tokens[1:i]).strip() for i in np.flatnonzero(edges)]
    assert before[:2] == ["", "Foxes ran. I ran. Who"]
    assert before[2:] == ["Foxes ran. I ran. Who ran?", "Foxes ran. I ran. Who ran? I ran. Foxes?"]
    assert not without.marks.any()


def test_a_circles_tokens_are_marked(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    [encoded] = encode([Document("I think so. think so.", circle=" think so.", complete=False)], tokenizer)
    assert tokenizer.decode(encoded.tokens[encoded.marks == CIRCLE]) == " think so."
    assert tokenizer.decode(encoded.tokens[1:][encoded.marks[1:] == 0]) == "I think so."


def test_shards_are_closed_at_the_size_that_is_asked_for(tmp_path):
    folder, tokenizer = make_packed(tmp_path, shard_tokens=100)
    index = json.loads((folder / "index.json").read_text())
    assert len(index["sources"][0]["train"]["shards"]) > 3
    whole = tmp_path / "whole"
    pack_corpus(write_corpus(tmp_path / "data"), tmp_path / "data", tokenizer, whole)
    assert documents_of(folder, "train") == documents_of(whole, "train")


def test_packing_twice_writes_the_same_bytes(packed, tmp_path):
    folder, tokenizer = packed
    pack_corpus(write_corpus(tmp_path / "data"), tmp_path / "data", tokenizer, tmp_path / "again")
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all((tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_a_folder_in_use_is_left_alone(packed, tmp_path):
    folder, tokenizer = packed
    before = (folder / "index.json").read_bytes()
    with pytest.raises(FileExistsError, match="must be a new or empty directory"):
        pack_corpus(write_corpus(tmp_path / "data"), tmp_path / "data", tokenizer, folder)
    assert (folder / "index.json").read_bytes() == before


def test_a_bad_line_leaves_no_folder(tmp_path):
    path = write_lines(tmp_path / "data" / "a.jsonl", {"text": "fine"})
    with path.open("a") as file:
        file.write('{"text": \n')
    corpus = Corpus(sources=(Source("a", paths=("a.jsonl",)),))
    with pytest.raises(ValueError, match=r"a\.jsonl:2: "):
        pack_corpus(corpus, tmp_path / "data", make_tokenizer(tmp_path / "tok"), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "tok"]


def test_a_path_that_names_nothing_is_told_before_anything_is_read(tmp_path):
    write_lines(tmp_path / "data" / "a.jsonl", {"text": "fine"})
    corpus = Corpus(sources=(Source("a", paths=("a.jsonl",)), Source("lost", paths=("gone",))))
    with pytest.raises(ValueError, match="'lost': expected"):
        pack_corpus(corpus, tmp_path / "data", make_tokenizer(tmp_path / "tok"), tmp_path / "out")


@pytest.mark.parametrize("absolute", [False, True])
def test_a_file_is_found_whatever_the_names_of_its_folders(tmp_path, absolute):
    path = write_lines(tmp_path / "[x]" / "a.jsonl", *({"text": f"foxes {i}"} for i in range(40)))
    root, name = (tmp_path / "data", str(path)) if absolute else (path.parent, "a.json*")
    root.mkdir(exist_ok=True)
    index = pack_corpus(
        Corpus(sources=(Source("a", paths=(name,)),)), root, make_tokenizer(tmp_path / "tok"), tmp_path / "o"
    )
    assert [*index["sources"][0]["sha256"]] == ["../[x]/a.jsonl" if absolute else "a.jsonl"]


def test_a_template_that_changes_a_reply_that_was_cut_off_is_told_of(tmp_path):
    tokenizer = loaded(make_tokenizer(tmp_path / "tokenizer"))
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'].split('</think>')[-1] }}{% endfor %}"
    messages = tuple({"role": r, "content": "why</think>foxes"} for r in ("user", "assistant"))
    with pytest.raises(ValueError, match="must write a reply as it is; it does not write 'why</think>foxes'"):
        encode([Document(messages=messages, complete=False)], tokenizer)


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere must hold tokenizer\.json"):
        pack_corpus(write_corpus(tmp_path / "data"), tmp_path / "data", tmp_path / "nowhere", tmp_path / "out")


def test_the_program_prints_what_it_packed(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "data")
    sources = [{"name": s.name, "share": s.share, "paths": list(s.paths)} for s in corpus.sources]
    (tmp_path / "corpus.json").write_text(json.dumps({"corpus": {"sources": sources}}))
    tokenizer = make_tokenizer(tmp_path / "tok")
    main(tmp_path / "corpus.json", tmp_path / "data", tokenizer, tmp_path / "out")
    assert "stories" in capsys.readouterr().out
    assert Packed(tmp_path / "out", tokenizer).shares == {"stories": 2, "chats": 1.0}
