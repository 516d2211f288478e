FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY docs/man docs/man
COPY docs/completions docs/completions
COPY schemas schemas
COPY shardprep shardprep
# All extras without TensorFlow; dicom has a decoder under the GPL 3 and must be asked for.
ARG EXTRAS=7z,cloud,hdf5,heic
RUN python -m venv /opt/shardprep && /opt/shardprep/bin/pip install --no-cache-dir ".[$EXTRAS]"

FROM python:3.13-slim
COPY --from=build /opt/shardprep /opt/shardprep
ENV PATH=/opt/shardprep/bin:$PATH
RUN useradd --create-home --uid 1000 shardprep
USER shardprep
WORKDIR /data
ENTRYPOINT ["shardprep"]
