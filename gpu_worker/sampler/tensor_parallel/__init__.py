"""Sampling of logits that are sharded over ranks by vocabulary: tokens bitwise equal for any number of ranks."""

from gpu_worker.sampler.tensor_parallel.group import Group
from gpu_worker.sampler.tensor_parallel.plan import RowPlan
from gpu_worker.sampler.tensor_parallel.sampler import TensorParallelSampler
from gpu_worker.sampler.tensor_parallel.sealed_rows import SealedRows
from gpu_worker.sampler.tensor_parallel.vocabulary_slice import VocabularySlice

__all__ = ["Group", "RowPlan", "SealedRows", "TensorParallelSampler", "VocabularySlice"]
