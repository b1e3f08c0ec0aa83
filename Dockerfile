# The server, or with FLOATSCOPE_EXTRA=all also the demo trainer. Build: docker build -t floatscope .
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY diagnostics diagnostics
COPY dashboards dashboards
COPY server server
COPY trainer trainer
COPY migrations migrations
ARG FLOATSCOPE_EXTRA=postgres
ARG TORCH=""
RUN python -m venv /opt/floatscope \
 && if [ -n "$TORCH" ]; then /opt/floatscope/bin/pip install --no-cache-dir "$TORCH"; fi \
 && /opt/floatscope/bin/pip install --no-cache-dir ".[${FLOATSCOPE_EXTRA}]"

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /data floatscope && install -d -o floatscope /data
COPY --from=build /opt/floatscope /opt/floatscope
ENV PATH=/opt/floatscope/bin:$PATH FLOATSCOPE_DATA_DIR=/data PYTHONUNBUFFERED=1
# by number, so that a cluster that forbids root can tell
USER 10001
VOLUME /data
EXPOSE 8321
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8321/healthz', timeout=2)"]
ENTRYPOINT ["floatscope"]
CMD ["serve", "--host", "0.0.0.0"]
