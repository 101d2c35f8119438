# Weft's image: Python, Weft with the extra `agent`, and the names of the originals' programs.
#   make image TAG=registry.example/weft-gpu:0.2.0
# It runs as user 65532 on a read-only root. BASE is any image with Python 3.11 or 3.12 and pip; one
# that has neither pip nor a shell does where BUILDER has them and the same Python in the same place.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILDER=${BASE}
FROM ${BUILDER} AS build
WORKDIR /src
RUN python3 -m venv --without-pip /opt/weft && python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir uv==0.13.8
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY src src
RUN /opt/uv/bin/uv export --frozen --no-dev --extra agent --prune matplotlib --no-emit-project --output-file /requirements.txt \
 && /opt/uv/bin/uv pip install --python /opt/weft --no-cache --require-hashes -r /requirements.txt \
 && /opt/uv/bin/uv build --wheel --out-dir /wheels \
 && /opt/uv/bin/uv pip install --python /opt/weft --no-cache --no-deps /wheels/*.whl \
 && find /opt/weft -type d -name tests \( -path '*/numpy/*' -o -path '*/scipy/*' \) -prune -exec rm -r {} + \
 && /opt/weft/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/weft \
 && mkdir /names && cd /names \
 && for name in elastic-gpu-scheduler elastic-gpu-agent gpushare-sche-extender gpushare-device-plugin-v2 genius; \
    do ln -s /opt/weft/bin/weft-compat $name; done

FROM ${BASE}
COPY --from=build /opt/weft /opt/weft
COPY --from=build /names /usr/bin
ENV PATH=/opt/weft/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
USER 65532:65532
ENTRYPOINT ["/opt/weft/bin/weft-compat"]
