# minidl in a container, on the CPU:
#
#     docker build -t minidl .
#     docker run --rm -it -v "$PWD:/work" --user "$(id -u):$(id -g)" minidl train --model lenet5
#
# On an NVIDIA GPU, with the NVIDIA Container Toolkit and driver 580 or newer (for an older one: cuda12):
#
#     docker build -t minidl-cuda --build-arg EXTRAS=plot,image,cuda13 .
#     docker run --rm -it --gpus all -v "$PWD:/work" --user "$(id -u):$(id -g)" minidl-cuda train --model lenet5
#
# CUDA's libraries come with the extra; only the driver is the machine's.
FROM python:3.13-slim
# g++ is for `minidl emulate`.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
ARG EXTRAS=plot,image
COPY . /minidl
RUN pip install --no-cache-dir "/minidl[$EXTRAS]"
# What runs write, and what they keep in the user's folder, is in the folder that is mounted here.
WORKDIR /work
ENV HOME=/work NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["minidl"]
CMD ["doctor"]
