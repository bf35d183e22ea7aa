"""Single decisions of the router: suspects and the lane, poison, patience, credit, back-off, caches."""

from __future__ import annotations

import pytest

from gpu_worker.grammar_link import events
from gpu_worker.grammar_link.placement import choose, ranking
from gpu_worker.grammar_link.settings import LinkSettings
from gpu_worker.grammar_link.walks import Walk
from shared.errors import AccountingError, CompileCrashed, Overloaded
from shared.protocol import Compile, Compiled, Drain, HelloAgain, Open, Ping, Step, WireError
from tests.property.router_world import World


def sent(world: World, peer: bytes, kind: type) -> list:
    return [message for message in world.services[peer].inbox if isinstance(message, kind)]


def peer_of(world: World, session: int) -> bytes:
    return world.router.sessions.by_id[session].peer


def let_all_work(world: World) -> None:
    for peer in list(world.services):
        while world.services[peer].inbox:
            world.work(peer)
        while world.services[peer].outbox:
            world.speak(peer)


def killer_world(num_services: int = 3) -> tuple[World, int]:
    """A session whose service dies on its walk; the walk reached it."""
    world = World()
    for _ in range(num_services):
        world.start_service()
    session = world.open(0, [])
    let_all_work(world)
    world.submit([Walk(session, path=[5])])
    return world, session


def notice_death(world: World, peer: bytes) -> None:
    world.kill(peer)
    world.tell(events.SendFailed(peer, "gone", (Ping(nonce=1),)))


def test_a_guide_that_ends_two_services_alone_fails_by_key() -> None:
    world, session = killer_world(num_services=4)
    other = world.open(1, [])
    let_all_work_but(world, session)
    notice_death(world, peer_of(world, session))
    for _ in range(2):  # alone on the lane: the first death proves nothing, services are killed for other reasons too
        assert world.known[session].error is None
        assert world.router.lane.under_test == session
        notice_death(world, peer_of(world, session))
    assert isinstance(world.known[session].error, CompileCrashed)
    assert world.known[other].state != "failed"
    again = world.open(0, [])
    assert isinstance(world.known[again].error, CompileCrashed), "refused while the poison lasts"
    waiter = world.compile(0)
    assert isinstance(world.compiles[waiter][0], CompileCrashed)
    world.pass_time(world.settings.poison_ttl_s + 1)
    world.start_service()
    assert world.known[world.open(0, [])].state == "idle"


def let_all_work_but(world: World, session: int) -> None:
    for peer in world.services:
        if peer != peer_of(world, session):
            while world.services[peer].inbox:
                world.work(peer)
            while world.services[peer].outbox:
                world.speak(peer)


def test_an_answer_on_the_lane_clears_the_guide() -> None:
    world, session = killer_world()
    notice_death(world, peer_of(world, session))
    let_all_work(world)
    assert world.known[session].state == "delivered" and not world.router.lane.sessions()
    world.submit([Walk(session, committed=[5], path=[6])])
    notice_death(world, peer_of(world, session))
    let_all_work(world)
    assert world.known[session].state == "delivered", "one death each is no proof"


def test_suspects_are_replayed_one_by_one() -> None:
    world = World()
    peer = world.start_service()
    sessions = [world.open(0, []) for _ in range(4)]
    let_all_work(world)
    world.submit([Walk(session, path=[5]) for session in sessions])
    notice_death(world, peer)
    second = world.start_service()
    assert [message.handle for message in sent(world, second, Open)] == sessions[:1]
    for session in sessions:
        assert [message.handle for message in sent(world, second, Open)] == [session]
        let_all_work(world)
        assert world.known[session].state == "delivered"


def test_what_never_reached_a_service_is_no_suspect() -> None:
    world = World()
    first, second = world.start_service(), world.start_service()
    world.kill(first)
    world.kill(second)
    session = world.open(0, [])
    world.submit([Walk(session, path=[5])])
    assert world.known[session].state == "waiting" and not world.router.lane.sessions()
    world.start_service()
    world.settle()
    assert world.known[session].state == "delivered"


def test_silence_moves_the_session_and_the_old_answer_is_refused() -> None:
    world = World()
    world.start_service()
    world.start_service()
    session = world.open(0, [])
    let_all_work(world)
    world.submit([Walk(session, path=[5])])
    old = peer_of(world, session)
    epoch = world.router.sessions.by_id[session].epoch
    world.pass_time(world.settings.replay_after_s)
    assert peer_of(world, session) != old and world.router.sessions.by_id[session].epoch == epoch + 1
    while world.services[old].inbox:
        world.work(old)
    while world.services[old].outbox:
        world.speak(old)
    assert world.known[session].state == "waiting"
    let_all_work(world)
    assert world.known[session].state == "delivered"


def test_steps_wait_for_credit() -> None:
    world = World()
    peer = world.start_service(credit=1)
    sessions = [world.open(0, []) for _ in range(3)]
    for session in sessions:
        world.submit([Walk(session, path=[5])])
    assert [len(step.entries) for step in sent(world, peer, Step)] == [1]
    while world.services[peer].inbox:
        world.work(peer)
    while world.services[peer].outbox:
        world.speak(peer)
    assert [len(step.entries) for step in sent(world, peer, Step)] == [2], "what waited goes in one message"


def test_strangers_are_told_hello_again_with_back_off() -> None:
    world = World()
    told = 0
    for _ in range(100):
        world.now_s += 0.05
        actions = world.router.handle(events.Received(b"stranger", Ping(nonce=1)), world.now_s)
        told += sum(isinstance(action, events.Send) and isinstance(action.message, HelloAgain) for action in actions)
    assert 3 <= told <= 8


def test_failures_are_forgotten_soon_and_plans_are_bounded() -> None:
    world = World(LinkSettings(plan_cache_entries=3, failure_ttl_s=1.0))
    peer = world.start_service()
    waiter = world.compile(7)
    (ask,) = sent(world, peer, Compile)
    world.services[peer].inbox.clear()
    error = WireError(code="unsupported_schema", message="no")
    world.tell(events.Received(peer, Compiled(key=ask.key, error=error)))
    assert world.compiles[waiter][0].code == "unsupported_schema"
    assert world.compiles[world.compile(7)], "remembered"
    world.pass_time(1.5)
    assert not world.compiles[world.compile(7)] and sent(world, peer, Compile), "asked again"
    for guide in range(10):
        world.compile(guide)
    let_all_work(world)
    assert world.router.plans.num_plans == 3


def test_compilation_goes_on_elsewhere_when_its_service_is_gone() -> None:
    world = World()
    world.start_service()
    world.start_service()
    waiter = world.compile(0)
    (peer,) = [peer for peer in world.services if sent(world, peer, Compile)]
    notice_death(world, peer)
    let_all_work(world)
    assert isinstance(world.compiles[waiter][0], Compiled)


def test_two_deaths_under_a_compilation_fail_its_guide() -> None:
    world = World()
    for _ in range(3):
        world.start_service()
    waiter = world.compile(0)
    for _ in range(2):
        (peer,) = [peer for peer in world.services if sent(world, peer, Compile)]
        notice_death(world, peer)
    assert isinstance(world.compiles[waiter][0], CompileCrashed)
    other = world.compile(1)
    let_all_work(world)
    assert isinstance(world.compiles[other][0], Compiled)


def test_drained_service_is_used_only_where_there_is_no_other() -> None:
    world = World()
    old = world.start_service()
    world.tell(events.Received(old, Drain()))
    session = world.open(0, [])
    assert peer_of(world, session) == old
    let_all_work(world)
    new = world.start_service()
    world.submit([Walk(session, path=[5])])
    assert peer_of(world, session) == new


def test_wrong_answers_end_the_session_after_a_few_replays() -> None:  # spec R8
    world = World()
    peer = world.start_service()
    session, other = world.open(0, []), world.open(1, [])
    world.submit([Walk(session, path=[5]), Walk(other, path=[5])])
    for _ in range(world.settings.max_replays + 1):
        while world.services[peer].inbox:
            world.work(peer)
        state = world.router.sessions.by_id.get(session)
        assert state is not None
        world.services[peer].outbox.clear()
        wrong = _answer(session, state.epoch, state.sequence_number)
        world.tell(events.Received(peer, wrong))
    assert isinstance(world.known[session].error, AccountingError)
    assert world.known[other].state == "waiting"


def test_a_wrong_answer_sends_the_walk_to_a_service_that_has_not_failed_it() -> None:  # spec R8 R9
    """With one honest service of three a text ends well, whichever the others are."""
    world = World()
    peers = [world.start_service() for _ in range(3)]
    session = world.open(0, [])
    world.submit([Walk(session, path=[5])])
    asked = []
    for _ in peers:
        state = world.router.sessions.by_id[session]
        asked.append(state.peer)
        world.tell(events.Received(state.peer, _answer(session, state.epoch, state.sequence_number)))
    assert sorted(asked) == sorted(peers)
    assert peer_of(world, session) in peers  # and another round begins


def _answer(session: int, epoch: int, sequence_number: int):
    from shared.protocol import StepAnswer, StepAnswerEntry, WireRow

    entry = StepAnswerEntry(session, epoch, sequence_number, b"wrong..!", 0, 1, 1, [WireRow(0)])
    return StepAnswer(step=1, entries=[entry])


def test_refuse_mode_answers_overloaded_at_once() -> None:
    world = World(LinkSettings(no_service="refuse"))
    waiter = world.compile(0)
    assert isinstance(world.compiles[waiter][0], Overloaded)


@pytest.mark.parametrize("gone", ["a", "b", "c", "d"])
def test_ranking_keeps_the_order_of_those_that_stay(gone: str) -> None:
    everyone = ["a", "b", "c", "d"]
    for key in map(str, range(50)):
        assert ranking(key, [name for name in everyone if name != gone]) == [n for n in ranking(key, everyone) if n != gone]


def test_load_is_bounded() -> None:
    loads = {"a": 0, "b": 0, "c": 0}
    for _ in range(300):
        loads[choose("one key", loads, 1.25)] += 1
    assert max(loads.values()) <= 126
    assert choose("one key", {}, 1.25) is None
