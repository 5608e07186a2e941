"""Fail, and say what to do, where the torch of this interpreter is not built for CUDA."""

import sys

import torch

if torch.version.cuda is None:
    sys.exit(
        f"this needs torch's build for CUDA, and pip's configuration brought torch {torch.__version__}.\n"
        "Point pip at an index that has it (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or `pip config`), remove\n"
        f"{sys.prefix}, and run make again"
    )
