"""The worker: wires model, pipeline, grammar link, step loop and front door together, and takes them down in order."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpu_worker import ranges
from gpu_worker.config import WorkerSettings
from gpu_worker.engine import Engine
from gpu_worker.front_door import FrontDoor
from gpu_worker.grammar_link import GrammarLink, LinkSettings
from gpu_worker.models.base import ModelRunner, RunnerShape
from gpu_worker.models.draft import load_draft_model
from gpu_worker.models.load import LoadedModel, Say, load_model
from gpu_worker.models.prepare import default_folder
from gpu_worker.models.synthetic import SyntheticOptions
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import HostPipeline, Pipeline
from gpu_worker.request import Model
from gpu_worker.requests import Requests
from gpu_worker.sampler.defaults import model_defaults
from gpu_worker.sampler.logits_processors import load_processors
from gpu_worker.scheduler import Scheduler
from gpu_worker.speculation.draft_model import DraftRunner
from shared import log
from shared.clock import MonotonicClock
from shared.errors import ConfigError
from shared.metrics import Endpoint
from shared.protocol import HealthReply, WorkerReply

LIVE_WITHIN_S = 15.0
"""The step loop turns at least every IDLE_WAIT_S; a turn that takes longer than this is a stuck one."""


class Worker:
    """A worker of one process. ``start`` returns when requests can be taken; ``close`` ends every request by name first."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings, self._clock = settings, MonotonicClock()
        model = settings.model or str(default_folder())
        shape = shape_of(settings)
        synthetic = SyntheticOptions(seed=settings.seed, forward_ms=settings.forward_ms, mean_length=settings.mean_length)
        self._log = log.get("worker")
        loaded = load_model(model, shape, device=settings.device, threads=settings.threads, synthetic=synthetic, say=self._log.info)
        defaults = model_defaults(Path(model)) if settings.generation_config == "auto" else {}
        self._model = Model(
            Path(model).name, loaded.vocabulary, loaded.chat, settings.max_length, defaults, load_processors(),
            max_slots=settings.max_slots, max_draft_tokens=shape.max_width - 1,
        )  # fmt: skip
        self._link = GrammarLink(settings.grammar_bind, _link_settings(settings), insecure=settings.insecure, worker=settings.name)
        self._link.start(loaded.vocabulary)
        self._pipeline = _pipeline(loaded.runner, settings)
        self._outcomes = Outcomes(self._reply_all, self._clock, loaded.vocabulary.size)
        self._engine = Engine(
            settings, self._pipeline, self._link, Scheduler(settings.max_slots, settings.prefill_chunk),
            Requests(loaded.vocabulary), self._outcomes, self._clock,
            _draft_runner(settings, shape, loaded, synthetic, self._log.info),
        )  # fmt: skip
        self._front_door = FrontDoor(settings, self._model, self._engine, self._clock, self.health)
        self._endpoint: Endpoint | None = None

    def start(self) -> None:
        self._engine.start()
        self._endpoint = Endpoint(self._settings.metrics_host, self._settings.metrics_port, self._health_line)
        self._front_door.start()
        self._log.info(
            "ready", clients=self.client_address, grammar_services=self.grammar_address, model=self._model.name,
            metrics_port=self._endpoint.port, slots=self._settings.max_slots,
        )  # fmt: skip

    @property
    def client_address(self) -> str:
        return self._front_door.address

    @property
    def grammar_address(self) -> str:
        return self._link.address

    def health(self) -> HealthReply:
        """What a health request is answered; live means that the step loop turns."""
        live = self._engine.alive and self._clock.now_s() - self._engine.last_turn_s < LIVE_WITHIN_S
        scheduler = self._engine.scheduler
        return HealthReply(
            live=live, ready=live, model=self._model.name, vocab_size=self._model.vocabulary.size, num_slots=scheduler.num_slots,
            active=len(scheduler.placed), waiting=len(scheduler.waiting), grammar_services=list(self._link.service_names),
            version=_version(),
        )  # fmt: skip

    def _health_line(self) -> tuple[bool, str]:
        reply = self.health()
        good = reply.live and self._front_door.alive
        return good, f"{'live' if good else 'not live'}, {len(reply.grammar_services)} grammar services\n"

    def _reply_all(self, replies: Sequence[tuple[bytes, WorkerReply]]) -> None:
        self._front_door.reply_all(replies)

    def close(self) -> None:
        self._engine.close()
        self._outcomes.close()
        self._front_door.close()
        self._pipeline.close()
        self._link.close()
        if self._endpoint is not None:
            self._endpoint.close()


def shape_of(settings: WorkerSettings) -> RunnerShape:
    """The sizes of the model's forward: as many positions as there may be drafts, and the golden token's."""
    drafts = settings.max_draft_tokens if settings.drafter != "none" else 0
    return RunnerShape(
        max_slots=settings.max_slots, max_length=settings.max_length, max_width=1 + drafts,
        prefill_chunk=min(settings.prefill_chunk, settings.max_length),
    )  # fmt: skip


def _draft_runner(
    settings: WorkerSettings, shape: RunnerShape, loaded: LoadedModel, synthetic: SyntheticOptions, say: Say
) -> DraftRunner | None:
    """Raises ConfigError where the drafter ``model`` has no model, or a model has no such drafter."""
    if (settings.drafter == "model") != bool(settings.draft_model):
        wanted = "the drafter 'model' needs a draft_model" if settings.drafter == "model" else "only the drafter 'model' has one"
        raise ConfigError(f"draft_model has value {settings.draft_model!r}: {wanted}", field="draft_model")
    if not settings.draft_model or not settings.max_draft_tokens:
        return None
    return load_draft_model(settings.draft_model, shape, loaded, synthetic=synthetic, say=say)


def _pipeline(runner: ModelRunner, settings: WorkerSettings) -> Pipeline:
    if runner.device.type != "cuda":
        return HostPipeline(runner, settings.last_resort_s)
    if settings.draft_branches > 1:
        text = f"draft_branches has value {settings.draft_branches}: a GPU's pipeline takes chains of drafts, no trees"
        raise ConfigError(text, field="draft_branches")
    from gpu_worker.cuda_pipeline import CudaPipeline

    if settings.nvtx:
        ranges.turn_on()
    return CudaPipeline(runner, settings.last_resort_s, pinned=settings.pinned_memory)


def _link_settings(settings: WorkerSettings) -> LinkSettings:
    # A running text waits for a service as long as its request may: the request's own deadline ends it.
    return LinkSettings(
        hold_after_s=settings.hold_after_s, replay_after_s=settings.replay_after_s, no_service=settings.no_service,
        orphan_after_s=settings.max_deadline_s if settings.no_service == "wait" else settings.replay_after_s,
    )  # fmt: skip


def _version() -> str:
    try:
        return version("maskstream")
    except PackageNotFoundError:  # run from a folder that is not installed
        return "0"
