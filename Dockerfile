# Builds three images. The first contains the services of the pipeline: simulator, connector (with the extra `sparkplug`),
# joiner (with the extra `protobuf`) and db_connector. The second contains the control service, whose web packages no other
# service needs. The third contains the joiner's stage in Spark, and Java, which only Spark needs. `docker compose build`
# builds all of them.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
WORKDIR /opt/lsb
COPY requirements requirements
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/python -m pip install --no-cache-dir --no-compile --require-hashes -r requirements/services.txt

FROM ${PYTHON_IMAGE} AS base
# The user has a fixed id, so that the files in volumes still belong to it after an update of the image.
RUN groupadd --gid 10001 lsb && useradd --uid 10001 --gid lsb --no-create-home --home-dir /tmp lsb
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/lsb PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/lsb
WORKDIR /opt/lsb
COPY LICENSE ./
COPY simulator simulator
COPY broker broker
COPY connector connector
COPY joiner joiner
COPY db_connector db_connector

FROM base AS services
COPY --from=packages /opt/venv /opt/venv
# Bytecode and all loops are compiled here, because the root file system of a container is read-only. numba needs a
# writable cache folder, so this folder becomes the initial content of a volume.
RUN python -m compileall -q /opt/lsb /opt/venv/lib \
 && python -m joiner.cli.loops && chown -R lsb:lsb /var/cache/lsb
USER 10001:10001
CMD ["python", "-m", "joiner", "run", "--config", "/etc/lsb/lsb.toml"]

FROM packages AS control-packages
RUN /opt/venv/bin/python -m pip install --no-cache-dir --no-compile --require-hashes -r requirements/control.txt

FROM base AS control
COPY control control
COPY --from=control-packages /opt/venv /opt/venv
RUN python -m compileall -q /opt/lsb /opt/venv/lib \
 && python -m joiner.cli.loops && chown -R lsb:lsb /var/cache/lsb
USER 10001:10001
CMD ["python", "-m", "control", "run", "--config", "/etc/lsb/lsb.toml"]

FROM packages AS spark-packages
RUN /opt/venv/bin/python -m pip install --no-cache-dir --no-compile --require-hashes -r requirements/spark.txt

FROM base AS spark
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*
COPY --from=spark-packages /opt/venv /opt/venv
RUN python -m compileall -q /opt/lsb /opt/venv/lib \
 && python -m joiner.cli.loops && chown -R lsb:lsb /var/cache/lsb
USER 10001:10001
CMD ["python", "-m", "joiner", "spark", "--config", "/etc/lsb/lsb.toml"]
