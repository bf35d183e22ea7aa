"""Requests in progress: sequences of n, and the endings."""

from gpu_worker.requests import RequestInProgress, Requests
from shared.errors import DeadEnd
from shared.protocol import Compiled, Plan
from tests.requests_of import make_request, sequence_of
from tests.vocabularies import tiny

PLAN = Plan(engine="llguidance", engine_version="1.9.1", guide_kind="regex", grammar_kind="regex", text="a", warnings=["narrower"])


def run(state, child, text, at_s=20.0):
    for byte in text:
        state.sequences[child].take(byte, None, at_s)


def test_epochs_are_never_used_twice():
    requests = Requests(tiny())
    states = [requests.begin(make_request(request_id=str(i), params={"n": 3, "temperature": 1})) for i in range(3)]
    epochs = [sequence.epoch for state in states for sequence in state.sequences]
    assert len(set(epochs)) == 9
    assert 0 not in epochs
    requests.end(states[0])
    assert requests.begin(make_request(request_id="0")).sequences[0].epoch not in epochs


def test_children_have_their_own_seed():  # spec 129
    state = Requests(tiny()).begin(make_request(params={"n": 3, "temperature": 1, "seed": 5}))
    assert [sequence.seed for sequence in state.sequences] == [5, 6, 7]
    assert [sequence.child for sequence in state.sequences] == [0, 1, 2]


def test_done_when_all_are():
    state = Requests(tiny()).begin(make_request(params={"n": 2, "temperature": 1, "max_tokens": 2}))
    run(state, 0, b"ab")
    assert not state.ended()
    run(state, 1, b"cd")
    assert state.ended()
    done = state.done([None, None])
    assert [choice.text for choice in done.choices] == ["ab", "cd"]
    assert [choice.choice for choice in done.choices] == [0, 1]


def test_done_names_engine_services_and_counts():  # spec R2, R26
    state = Requests(tiny()).begin(make_request(structured_outputs={"regex": "a"}, params={"max_tokens": 2}))
    state.compiled = Compiled(key="k", plan=PLAN, compile_ms=3.5)
    sequence = state.sequences[0]
    sequence.services += ["b", "a"]
    sequence.rows.update({"DENSE": 1, "STOP_ONLY": 1})
    sequence.replays, sequence.holds = 1, 4
    run(state, 0, b"a", 11.0)
    run(state, 0, [260], 12.0)
    state.request.warnings.append("odd")
    done = state.done([True])
    assert (done.engine, done.guide_kind, done.services) == ("llguidance 1.9.1", "regex", ["a", "b"])
    assert done.warnings == ["narrower", "odd"]
    assert done.choices[0].valid is True
    usage = done.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.compile_ms) == (3, 2, 3.5)
    assert (usage.time_to_first_token_ms, usage.ms_per_token) == (1000.0, 1000.0)
    assert (usage.rows, usage.replays, usage.holds) == ({"DENSE": 1, "STOP_ONLY": 1}, 1, 4)


def test_failed_says_what_there_was():
    state = Requests(tiny()).begin(make_request(params={"stop": ["END"]}))
    run(state, 0, b"aE")
    failed = state.failed(DeadEnd("no token"))
    assert (failed.error.code, failed.text, failed.token_ids) == ("dead_end", "aE", [97, 69])


def test_a_cancelled_request_ends_well():
    state = Requests(tiny()).begin(make_request())
    run(state, 0, b"ab")
    state.cancelled = True
    assert state.ended()
    assert state.done([None]).choices[0].finish_reason == "cancelled"
    assert state.done([None]).choices[0].text == "ab"


def test_usage_before_the_first_token():
    state = RequestInProgress(make_request(), [sequence_of()])
    assert state.usage().time_to_first_token_ms == 0.0


def test_deadlines():
    requests = Requests(tiny())
    assert requests.next_deadline_s() == float("inf")
    soon = requests.begin(make_request(request_id="soon", deadline_s=1.0))
    late = requests.begin(make_request(request_id="late", deadline_s=9.0))
    assert requests.next_deadline_s() == 11.0
    assert requests.expired(10.9) == []
    assert requests.expired(11.0) == [soon]
    soon.finishing = True  # the validator is at work: it has ended in time
    assert requests.expired(12.0) == []
    requests.end(soon)
    assert list(requests.by_key.values()) == [late]
