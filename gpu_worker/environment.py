"""Environment that numeric libraries read once, when they load: imported before torch by everything in this package."""

from __future__ import annotations

import os

# Without it MKL picks kernels by alignment and processor, and logits change in the last bits with the place of a row.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
# cuBLAS is deterministic on one stream only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Idle threads sleep: a forward shares its cores with grammar services, and threads that spin at a barrier stall both.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
