# The segops service. Build arguments:
#   INSTALL_CUDA    13 (default) | 12 | none    CUDA libraries for JAX. Warp's own wheel is built with
#                   CUDA 13, so both need a driver of the R580 series or newer and sm_75 or newer.
#   PYTHON_VERSION  3.12 (default) | 3.11 | 3.13
ARG PYTHON_VERSION=3.12
ARG INSTALL_CUDA=13

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
ARG INSTALL_CUDA
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PATH=/opt/segops/bin:${PATH}
RUN python -m venv /opt/segops
WORKDIR /src
# The dependencies, gigabytes with CUDA, in a layer that a change of the code leaves alone: first
# the three distributions with no code in them, then the code without its dependencies.
COPY constraints.txt pyproject.toml README.md LICENSE VERSION ./
COPY service/pyproject.toml service/LICENSE service/
COPY clients/python/pyproject.toml clients/python/LICENSE clients/python/
RUN mkdir segops service/segops_service clients/python/segops_client \
    && touch segops/__init__.py service/segops_service/__init__.py clients/python/segops_client/__init__.py \
    && cuda="${INSTALL_CUDA#none}" \
    && pip install --constraint constraints.txt ".${cuda:+[cuda${cuda}]}" ./clients/python ./service
COPY segops segops
COPY service service
COPY clients/python clients/python
RUN pip install --no-deps --force-reinstall . ./clients/python ./service

# One stage for each choice: an image never computes on another platform than the one it was built
# for unless SEGOPS_PLATFORM says so, and a choice that does not exist fails the build.
FROM python:${PYTHON_VERSION}-slim-bookworm AS cuda-none
ENV SEGOPS_PLATFORM=cpu

FROM python:${PYTHON_VERSION}-slim-bookworm AS cuda-12
ENV SEGOPS_PLATFORM=cuda

FROM python:${PYTHON_VERSION}-slim-bookworm AS cuda-13
ENV SEGOPS_PLATFORM=cuda

# hadolint ignore=DL3006
FROM cuda-${INSTALL_CUDA}
# /cache holds compiled kernels. Warp keeps them below XDG_CACHE_HOME in a folder per Warp version
# (WARP_CACHE_PATH would mix versions), JAX keys its entries by version. Any user id may write there.
RUN useradd --uid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin segops \
    && install --directory --mode 1777 /cache
COPY --from=build /opt/segops /opt/segops
COPY deploy/healthcheck.py /opt/segops/healthcheck.py
ENV PATH=/opt/segops/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/cache \
    JAX_COMPILATION_CACHE_DIR=/cache/jax \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    SEGOPS_HOST=0.0.0.0 \
    SEGOPS_PORT=8000
USER 10001:10001
WORKDIR /cache
VOLUME ["/cache"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "/opt/segops/healthcheck.py"]
ENTRYPOINT ["segops-service"]
CMD ["serve"]
