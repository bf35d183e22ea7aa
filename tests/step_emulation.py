"""A StepDevice without a device: a thread that does what the kernels of a captured step do, on the same buffers, flag by flag."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np
import torch

from gpu_worker.cuda_pipeline import CudaPipeline, step_shapes, step_sizes
from gpu_worker.pipeline import MAX_IN_FLIGHT
from gpu_worker.step_buffers import LaunchBuffers, StepBuffers
from gpu_worker.step_device import StepDevice
from gpu_worker.watchdog import FLAG
from kernels import reference
from kernels.step import ASK_PROCESSED, ASK_RAW

UNGUIDED, GUIDED, HOLD, IDLE = range(4)
HELD_BIT = 8


class EmulatedDevice(StepDevice):
    """Eager meaning of step.cu; sampling by the reference. ``delay_s``: how long a forward takes."""

    def __init__(self, runner, sizes, shapes, watchdog, places, delay_s=0.0):
        self.sizes, self.shapes, self._runner, self._watchdog, self._delay_s = sizes, tuple(shapes), runner, watchdog, delay_s
        cpu = torch.device("cpu")
        self.buffers = StepBuffers(sizes, cpu)
        self.ring = [LaunchBuffers.empty(sizes, cpu, pinned=False) for _ in range(places)]
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self._ended = [threading.Event() for _ in range(places)]
        self.taken = []
        self._thread = threading.Thread(target=self._loop, name="emulated-device", daemon=True)
        self._thread.start()

    def attach(self):
        return

    def run(self, work):
        self._work.put(work)

    def enqueue(self, place, shape):
        self.taken.append(shape)
        self._ended[place].clear()
        self._work.put(lambda: self._step(place, shape))

    def release(self, place):
        self._watchdog.release(place)

    def finished(self, place, timeout_s):
        self._ended[place].wait(timeout_s)

    def set_slot(self, slot, *, token, position, length, epoch):
        def work():
            state = self.buffers.state
            state.tokens[slot, 0], state.positions[slot], state.lengths[slot], state.epoch[slot] = token, position, length, epoch

        self._work.put(work)

    def kept_logits(self, place, rows):
        return [row.numpy().tobytes() for row in self.ring[place].kept[:rows]]

    def close(self):
        self._work.put(None)
        self._thread.join(30)

    def _loop(self):
        while (work := self._work.get()) is not None:
            work()

    # ---- a step ----

    def _step(self, place, shape):
        launch, step = self.ring[place], self.buffers.of(shape)
        self._feed(launch, shape)
        state = self.buffers.state
        active, width = shape.active, shape.width
        logits = self._runner.decode(state.tokens[:active, :width], state.positions[:active], state.lengths[:active])
        logits = logits.reshape(active * width, -1)
        time.sleep(self._delay_s)
        lines = self._watchdog.page.lines
        while lines[place, FLAG] != 1:
            time.sleep(1e-4)
        lines[place, FLAG] = 0
        self._begin(launch.descriptor, step, shape)
        self._sample(launch, step, shape, logits)
        self._commit(launch, step, shape)
        self._ended[place].set()

    def _feed(self, launch, shape):
        state = self.buffers.state
        for slot in range(shape.active if shape.width > 1 else 0):
            if state.lengths[slot]:
                n = int(launch.drafts["num_drafts"][slot])
                state.tokens[slot, 1 : 1 + n] = torch.from_numpy(launch.drafts["drafts"][slot, :n].astype(np.int64))
                state.lengths[slot] = 1 + n

    def _begin(self, block, step, shape):
        state, out, width = self.buffers.state, step.rows, shape.width
        sealed = int(block["sealed"][0]) == int(state.counter[0]) + 1
        for row in range(shape.active * width):
            slot, at = divmod(row, width)
            length = int(state.lengths[slot])
            action = self._decide(block, slot, at, length, sealed)
            if action <= GUIDED:
                for name in ("temperature", "top_p", "min_p", "top_k", "seed", "offset"):
                    getattr(out.rows, name)[row] = block[name][at, slot].item()
            out.status[row] = HOLD if action == IDLE else action
            if at == 0:
                state.action[slot] = action
                state.num_drafts[slot] = min(int(block["depth"][slot]), length) - 1 if action <= GUIDED else 0
            else:
                state.drafts[slot * (width - 1) + at - 1] = int(state.tokens[slot, at])
            if step.more is not None and sealed:
                self._features(block, step.more, row, slot, at, width, action <= GUIDED)
            if action == GUIDED:
                pinned = slot * self.sizes.most + at
                cached = int(block["cached"][pinned])
                to = row if cached < 0 else self.sizes.rows + cached
                out.index[row] = to
                if cached < 0 or block["fill"][pinned]:
                    out.bitmask[to] = torch.from_numpy(block["rows"][pinned])

    def _decide(self, block, slot, at, length, sealed):
        if length == 0 or not sealed:
            return HOLD if length else IDLE
        state = self.buffers.state
        action = int(block["action"][slot]) if block["epoch"][slot] == state.epoch[slot] else IDLE
        return HOLD if action <= GUIDED and at and at >= min(int(block["depth"][slot]), length) else action

    def _features(self, block, more, row, slot, at, width, live):
        overlay, p = more.overlay, more.penalties
        for at_row in (row, row + 1):
            overlay.bias.start[at_row] = int(block["bias_start"][at_row])
            overlay.bans.start[at_row] = int(block["ban_start"][at_row])
        more.asks[row] = int(block["asks"][slot]) if live else 0
        p.slot[row] = int(block["penalised"][slot]) if live else -1
        for name in ("repetition", "presence", "frequency"):
            getattr(p, name)[row] = float(block[name][slot])
        if at == 0:
            more.counted_slot[slot] = int(block["penalised"][slot]) if live else -1
        for i in range(1, width):
            p.prefix[row, i - 1] = int(self.buffers.state.tokens[slot, i]) if i <= at else -1
        if not live:
            return
        self._list(overlay.bias, block, "bias", row, int(block["bias_from"][slot]))
        self._list(overlay.bans, block, "ban", row, int(block["ban_from"][row]))
        if at == 0 and block["fresh"][slot]:
            self._fresh(block, p, slot)

    @staticmethod
    def _list(tokens, block, name, row, begin):
        first, end = (int(block[f"{name}_start"][i]) for i in (row, row + 1))
        tokens.ids[first:end] = torch.from_numpy(block[f"{name}_ids"][begin : begin + end - first])
        if tokens.values is not None:
            tokens.values[first:end] = torch.from_numpy(block[f"{name}_values"][begin : begin + end - first])

    @staticmethod
    def _fresh(block, p, slot):
        p.counts[slot] = 0
        p.seen[slot] = p.counted[slot] = 0
        for i in range(block["fresh_start"][slot], block["fresh_start"][slot + 1]):
            token, entry = int(block["fresh_ids"][i]), int(block["fresh_counts"][i])
            p.counts[slot].numpy()[token] = entry & 0xFFFF
            bit = np.int32(np.uint32(1 << (token & 31)).view(np.int32))
            for bits, wanted in ((p.seen, entry >> 16), (p.counted, entry & 0xFFFF)):
                if wanted:
                    bits[slot].numpy()[token >> 5] |= bit

    def _sample(self, launch, step, shape, logits):
        """Every row once a kind of log-probability; rows of another kind do not ask."""
        rows, out, more = step.rows, step.output, step.more
        masks = {"bitmask": rows.bitmask, "row_index": rows.index, "row_status": rows.status, "vocab_size": self.sizes.vocab_size}
        overlay = None if more is None else more.overlay
        sampled = reference.sample(logits, rows.rows, overlay=overlay, **masks)
        out.token[:], out.status[:] = sampled.token, sampled.status
        if more is None:
            return
        for ask, mode in ((ASK_RAW, "raw"), (ASK_PROCESSED, "processed")):
            told = reference.sample(
                logits, rows.rows, overlay=overlay, logprobs=mode, num_logprobs=min(self.sizes.num_top, logits.shape[1]), **masks
            )
            for row in np.flatnonzero((more.asks.numpy() == ask) & (out.token.numpy() >= 0)):
                slot, at = divmod(int(row), shape.width)
                if self.buffers.state.action[slot] <= GUIDED:
                    self._tell(launch.result, told, row, at, slot)
        for slot in range(shape.active):
            keep = int(launch.descriptor["keep"][slot])
            if keep >= 0 and self.buffers.state.action[slot] <= GUIDED:
                launch.kept[keep] = logits[slot * shape.width]

    @staticmethod
    def _tell(result, told, row, at, slot):
        result["logprob"][at, slot], result["rank"][at, slot] = told.logprob[row], told.rank[row]
        n = told.top_ids.shape[1]
        result["top_ids"][at, slot, :n], result["top_logprobs"][at, slot, :n] = told.top_ids[row], told.top_logprobs[row]

    def _commit(self, launch, step, shape):
        state, width, result = self.buffers.state, shape.width, launch.result
        token, status = step.output.token.tolist(), step.output.status.tolist()
        for slot in range(shape.active):
            action, first = int(state.action[slot]), slot * width
            drafts = state.drafts[slot * (width - 1) :].tolist()
            n = 0
            while action <= GUIDED and n < width and token[first + n] >= 0:
                n += 1
                if n > int(state.num_drafts[slot]) or drafts[n - 1] != token[first + n - 1]:
                    break
            for at in range(width):
                result["token"][at, slot] = token[first + at] if at < n else -1
                result["status"][at, slot] = status[first + at] if action <= GUIDED else HELD_BIT
            result["action"][slot], result["epoch"][slot] = action, int(state.epoch[slot])
            if n:
                state.tokens[slot, 0] = token[first + n - 1]
                state.positions[slot] += n
            if step.more is not None and step.more.counted_slot[slot] >= 0:
                self._count(step.more.penalties, slot, token[first : first + n])
        state.lengths.clamp_(max=1)
        state.counter[0] += 1
        result["launch"][0] = int(state.counter[0])

    @staticmethod
    def _count(p, slot, tokens):
        for token in tokens:
            counts = p.counts[slot].numpy()
            counts[token] += counts[token] < 65535
            p.counted[slot].numpy()[token >> 5] |= np.uint32(1 << (token & 31)).view(np.int32)


class Emulated(CudaPipeline):
    """With a device made for it. ``listed``: how small the lists are."""

    def __init__(self, runner, last_resort_s=20.0, *, listed=1 << 12, kept=2):
        self.sizes = step_sizes(runner)
        object.__setattr__(self.sizes, "listed", listed)
        object.__setattr__(self.sizes, "kept", kept)
        shell = EmulatedDevice.__new__(EmulatedDevice)
        super().__init__(runner, last_resort_s, device=_Later(shell, self.sizes, runner))
        shell.__init__(runner, self.sizes, step_shapes(runner), self._watchdog, MAX_IN_FLIGHT)
        self._device, self._ring = shell, shell.ring


class _Later:
    """Stands in until the watchdog is there."""

    def __init__(self, shell, sizes, runner):
        self.sizes, self.ring, self.shapes = sizes, [], step_shapes(runner)
