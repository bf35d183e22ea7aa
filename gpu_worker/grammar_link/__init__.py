"""The worker's side of the grammar link: a ROUTER that grammar services connect to, in a thread of its own.

    link = GrammarLink("tcp://0.0.0.0:7101", LinkSettings(...), insecure=True)
    link.start(vocabulary)                                  # binds; link.address is where services connect to
    compiled = link.compile(guide, client=..., deadline_s=30).result()      # Compiled with .plan, .key, or a MaskstreamError
    session = link.open(compiled.key, compiled.plan, stop_ids, committed)   # at once; errors come as its first outcome
    fork = link.fork(session, length)                       # the first `length` committed tokens of another session

One step of the step loop:

    ticket = link.submit(step, walks, out)                  # one Walk a guided sequence; out: int32 [rows, W]
    ...                                                     # the forward runs
    ticket.wait(link.settings.hold_after_s)                 # True: all are in; held sessions are not waited for
    for session, outcome in ticket.seal().items(): ...      # exactly once; afterwards `out` is not written any more

``Walk(session, row, committed, path, parents, accepted, draft_walk)``: ``committed`` are the tokens committed since the session's
last walk, ``path`` is golden token + drafts (empty for the first row), ``row`` the first row of ``out`` it takes, ``walk.num_rows``
how many. With K = 0 the walks of a sequence are: (path=[]), (path=[t0]), (committed=[t0], path=[t1], accepted=1), ...

``Outcome.status`` is a WalkStatus. OK: ``num_guided`` rows hold words, later ones are zero. HOLD: no answer yet: submit the walk
again without ``committed`` (that part is taken), with the same path; an answer that came meanwhile is given at once, and until it
comes the session is not waited for. TERMINATED, DEAD_END, REFUSED, FAILED (``error``): the request ends, close the session.
Sessions live until ``close_session``. A service's death, silence or drain shows only as HOLD: sessions are replayed elsewhere.
"""

from gpu_worker.grammar_link.link import GrammarLink
from gpu_worker.grammar_link.settings import LinkSettings
from gpu_worker.grammar_link.ticket import StepTicket
from gpu_worker.grammar_link.walks import Outcome, SessionId, Walk, WalkStatus

__all__ = ["GrammarLink", "LinkSettings", "Outcome", "SessionId", "StepTicket", "Walk", "WalkStatus"]
