# SPDX-License-Identifier: Apache-2.0
"""Models of which each process holds a part: `torch.distributed.fsdp.fully_shard` under private training."""
