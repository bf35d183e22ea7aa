# A grammar service: no torch, no CUDA, no model. Layers from the rarest change to the commonest.
FROM python:3.11-slim-bookworm AS build
# An extra index for pip, empty by default (compose passes it on).
ARG PIP_EXTRA_INDEX_URL=""
RUN python -m venv --without-pip /opt/maskstream
WORKDIR /build
COPY pyproject.toml LICENSE ./
COPY requirements/no-deps.txt requirements/
# The project is installed before its sources are there: what it needs and its command, nothing that a source change touches.
RUN --mount=type=cache,target=/root/.cache/pip \
    export PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" \
    && touch README.md \
    && pip --python /opt/maskstream/bin/python install --progress-bar off '.[grammar]' \
    && grep '^xgrammar' requirements/no-deps.txt > /tmp/no-deps.txt \
    && pip --python /opt/maskstream/bin/python install --progress-bar off --no-deps -r /tmp/no-deps.txt

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin maskstream
ENV PATH=/opt/maskstream/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/maskstream /opt/maskstream
WORKDIR /app
COPY shared shared
COPY grammar_service grammar_service
USER maskstream
ENTRYPOINT ["python", "-m", "grammar_service"]
