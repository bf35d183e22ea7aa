"""Settings of the GPU worker: flag = environment variable (``MASKSTREAM_WORKER_...``) = documented default."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shared.config import Settings

PREFIX = "MASKSTREAM_WORKER"


class WorkerSettings(Settings, frozen=True, kw_only=True):
    """One worker: its model, its sockets, its patience."""

    name: Annotated[str, Meta(description="name in logs and greetings", max_length=64)] = "worker"
    model: Annotated[
        str, Meta(description="folder of the prepared model, or synthetic:SIZE[:TOKENIZER_FILE]; empty: the demo model")
    ] = ""
    generation_config: Annotated[
        Literal["auto", "none"], Meta(description="sampling defaults of the model's generation_config.json, or none")
    ] = "auto"
    client_bind: Annotated[str, Meta(description="address of the front door")] = "tcp://127.0.0.1:5555"
    grammar_bind: Annotated[str, Meta(description="address where grammar services register")] = "tcp://127.0.0.1:5556"
    insecure: Annotated[bool, Meta(description="allow addresses that other hosts reach, without keys")] = False
    metrics_host: Annotated[str, Meta(description="host of /metrics and /health")] = "127.0.0.1"
    metrics_port: Annotated[int, Meta(description="port of /metrics and /health; 0 chooses one", ge=0, le=65535)] = 9100
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="where the model runs")] = "auto"
    threads: Annotated[int, Meta(description="CPU threads of the forward; 0: all cores", ge=0, le=256)] = 0
    max_slots: Annotated[int, Meta(description="sequences decoded at once", ge=1, le=1024)] = 8
    max_length: Annotated[int, Meta(description="tokens of a sequence, prompt included", ge=8, le=1 << 20)] = 1024
    prefill_chunk: Annotated[int, Meta(description="prompt tokens of one prefill call", ge=1, le=8192)] = 64
    max_draft_tokens: Annotated[int, Meta(description="tokens guessed ahead of a sequence in one step, 0: none", ge=0, le=64)] = 0
    drafter: Annotated[
        Literal["ngram", "forced", "ngram+forced", "model", "none"],
        Meta(description="who guesses: prompt lookup, what the grammar forces, both, or the draft model"),
    ] = "ngram+forced"
    draft_model: Annotated[
        str, Meta(description="folder of the draft model, or synthetic:AGREEMENT beside a synthetic one; for drafter model")
    ] = ""
    verification: Annotated[
        Literal["match", "rejection"],
        Meta(
            description="match: texts do not depend on drafts; rejection: only their distribution does not (sampled draft models)"
        ),
    ] = "match"
    draft_branches: Annotated[
        int, Meta(description="guesses side by side in one step, as a tree; 1: one chain (CPU pipeline)", ge=1, le=16)
    ] = 1
    pinned_memory: Annotated[
        bool, Meta(description="page-locked memory between host and GPU; without it steps are not captured and slower")
    ] = True
    nvtx: Annotated[bool, Meta(description="name the parts of each step for a profiler of NVTX ranges")] = False
    max_waiting: Annotated[int, Meta(description="requests that may wait for a slot; more are answered overloaded", ge=0)] = 256
    max_requests_per_client: Annotated[int, Meta(description="unfinished requests of one connection", ge=1)] = 256
    no_service: Annotated[Literal["wait", "refuse"], Meta(description="guided requests while no grammar service is there")] = "wait"
    hold_after_s: Annotated[float, Meta(description="how long a step waits for rows before it holds a sequence", gt=0, le=60)] = (
        0.05
    )
    replay_after_s: Annotated[float, Meta(description="silence of a service before its session moves", gt=0, le=600)] = 1.0
    suspend_after_s: Annotated[float, Meta(description="a sequence held longer gives its slot back", gt=0, le=600)] = 2.0
    last_resort_s: Annotated[float, Meta(description="a launch whose descriptor is not sealed by then holds", gt=0, le=600)] = 5.0
    deadline_s: Annotated[float, Meta(description="deadline of a request that names none", gt=0, le=86400)] = 120.0
    max_deadline_s: Annotated[float, Meta(description="longest deadline that a request may name", gt=0, le=86400)] = 600.0
    forward_ms: Annotated[float, Meta(description="forward time that the synthetic runner pretends", ge=0)] = 0.0
    seed: Annotated[int, Meta(description="seed of the synthetic runner", ge=0)] = 0
    mean_length: Annotated[int, Meta(description="tokens after which the synthetic runner wants to end, on average", ge=1)] = 64
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level logged")] = "info"
