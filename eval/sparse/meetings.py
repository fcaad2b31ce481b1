"""Meetings and what is asked about them, as QMSum has them."""

from eval.tasks.records import Record

TURNS = "meeting_transcripts"
QUERIES = ("specific_query_list", "general_query_list")


def is_meeting(record: Record) -> bool:
    """Says whether a record is a meeting."""
    return TURNS in record.fields


def asked(record: Record) -> list[Record]:
    """Returns a prompt for each query on a meeting: all that is said, then the query. ROUGE-L grades the answer.

    Source: Zhong et al. 2021, "QMSum: A New Benchmark for Query-based Multi-domain Meeting Summarization".

    Args:
      record: of what is said, `{"speaker": …, "content": …}` each, and lists of `{"query": …, "answer": …}`, those on
        parts of the meeting before those on all of it.

    Raises:
      ValueError: a field is missing or of another kind.
    """
    said = "\n".join(f"{turn.text('speaker')}: {turn.text('content')}" for turn in _listed(record, TURNS))
    prompts = []
    for number, query in enumerate((query for name in QUERIES for query in _listed(record, name)), start=1):
        context = f"{said}\n\nQuestion: {query.text('query')}\nAnswer:"
        fields = {"context": context, "answer": query.text("answer"), "metric": "rouge_l"}
        prompts.append(Record(f"{record.where}, query {number}", fields))
    return prompts


def _listed(record: Record, name: str) -> list[Record]:
    found = record.fields.get(name, [])
    if not isinstance(found, list) or not all(isinstance(fields, dict) for fields in found):
        raise record.error(f'expected a list of objects "{name}"')
    return [Record(record.where, fields) for fields in found]
