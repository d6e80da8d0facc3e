"""Training on digits as any tutorial has it; `--out` gets the weights, from the first rank."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Digits(Dataset):
    def __init__(self):
        digits = load_digits()
        self.x = torch.tensor(digits.data[:256] / 16, dtype=torch.float64)
        self.y = torch.tensor(digits.target[:256])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def wrapped(model, how):
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def weights(model, how):
    if how == "ddp":
        return torch.cat([p.detach().flatten() for p in model.parameters()])
    if how == "fsdp":
        with FullyShardedDataParallel.summon_full_params(model):
            return torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", default="ddp")
    parser.add_argument("--out", required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--context")
    chosen = parser.parse_args()
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    model = wrapped(torch.nn.Sequential(*layers).double(), chosen.how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Digits()
    loader = DataLoader(
        data,
        batch_size=64 // dist.get_world_size(),
        sampler=DistributedSampler(data, shuffle=False),
        num_workers=chosen.workers,
        multiprocessing_context=chosen.context,
    )
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = weights(model, chosen.how)
    if dist.get_rank() == 0:
        torch.save(found, pathlib.Path(chosen.out))
        print(f"saved by {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
