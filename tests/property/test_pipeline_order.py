"""The host pipeline under any order of seals, holds and changes of owner: each owner's tokens are those of the model alone."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.pipeline import MAX_IN_FLIGHT, HostPipeline
from tests.device import MAX_LENGTH, SLOTS, descriptor, greedy, make_runner

calm = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
slots = st.integers(0, SLOTS - 1)
events = st.lists(
    st.tuples(st.just("launch"), st.just(0))
    | st.tuples(st.just("seal"), st.sets(slots))  # the held ones
    | st.tuples(st.just("seal_again"), st.just(0))
    | st.tuples(st.just("collect"), st.just(0))
    | st.tuples(st.just("change_owner"), slots),
    max_size=40,
)


class Host:
    """Drives a pipeline as the step loop does: seals the oldest launch, with the owners that it was launched with or, where
    ``stale`` says so, with owners that have gone since. ``texts`` owner -> prompt and tokens that were committed."""

    def __init__(self):
        self.pipeline = HostPipeline(make_runner(), last_resort_s=60.0)
        self.owners, self.texts, self.launched, self.sealed = {}, {}, [], []
        self.next_epoch = 1
        for slot in range(SLOTS):
            self.change_owner(slot)

    def change_owner(self, slot):
        if slot in self.owners:
            self.pipeline.release(slot)
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        self.owners[slot], self.texts[epoch] = epoch, [60 + epoch % 100]
        self.pipeline.admit(slot, epoch, self.texts[epoch][0], 0)

    def launch(self):
        if len(self.launched) + len(self.sealed) < MAX_IN_FLIGHT:
            self.launched.append((self.pipeline.launch(), dict(self.owners)))

    def seal(self, held):
        if self.launched:
            launch, _ = self.launched.pop(0)
            owners = dict(self.owners)  # those of now: some may be newer than the launch
            assert self.pipeline.seal(descriptor(launch, owners, held=held))
            self.sealed.append((launch, owners, held))

    def seal_again(self):
        for launch, owners, _ in self.sealed:
            assert not self.pipeline.seal(descriptor(launch, owners))

    def collect(self):
        if not self.sealed:
            return
        launch, owners, held = self.sealed.pop(0)
        result = self.pipeline.collect(60.0)
        assert result is not None
        assert (result.launch, result.error) == (launch, None)
        for slot, epoch in owners.items():
            token = int(result.token[slot])
            if token < 0:
                continue
            assert slot not in held
            assert int(result.epoch[slot]) == epoch
            assert token == greedy(self.texts[epoch])
            self.texts[epoch].append(token)

    def finish(self):
        """After the storm every owner advances at each launch."""
        while self.launched:
            self.seal(set())
        while self.sealed:
            self.collect()
        before = {epoch: len(self.texts[epoch]) for epoch in self.owners.values()}
        self.launch()
        self.seal(set())
        self.collect()
        assert {epoch: len(self.texts[epoch]) for epoch in before} == {epoch: size + 1 for epoch, size in before.items()}


@calm
@given(events)
def test_any_order_gives_the_same_tokens(steps):  # spec R18
    host = Host()
    try:
        for name, argument in steps:
            if name in ("seal", "change_owner"):
                getattr(host, name)(argument)
            else:
                getattr(host, name)()
        assert max(map(len, host.texts.values())) < MAX_LENGTH
        host.finish()
    finally:
        host.pipeline.close()
