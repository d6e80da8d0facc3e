"""Functions that ranks run in turn with operations: logs, random numbers. Monarch's names."""

from __future__ import annotations

import logging

import torch

from monarch_nb.tensor.remote_functions.remoting import remote

logger = logging.getLogger("monarch.builtins")


@remote(propagate="inspect")
def log_remote(*args: object, level: int = logging.WARNING, **kwargs: object) -> None:
    """Log a message on each rank, as `logging.log` does."""
    logger.log(level, *args, **kwargs)  # type: ignore[arg-type]  # the message, its parts, options


@remote(propagate="inspect")
def set_logging_level_remote(level: int) -> None:
    """Show messages of `log_remote` from this level on."""
    logger.setLevel(level)


@remote(propagate="inspect")
def set_manual_seed_remote(seed: int, process_idx: int = 0) -> None:
    """Seed each rank, differently where `process_idx` (`mesh.process_idx()`) differs."""
    torch.manual_seed(seed ^ process_idx)


@remote(propagate=lambda: torch.zeros(1))
def get_rng_state_remote() -> torch.Tensor:
    """Return the state of each rank's random numbers."""
    return torch.get_rng_state()


@remote(propagate="inspect")
def set_rng_state_remote(new_state: torch.Tensor) -> None:
    """Go back to a state of `get_rng_state_remote`."""
    torch.set_rng_state(new_state)


@remote(propagate=lambda: None)
def seed_remote() -> None:
    """Seed each rank by chance."""
    torch.seed()


random_seed_remote = seed_remote


@remote(propagate="inspect")
def manual_seed_cuda_remote(seed: int) -> None:
    """Seed each rank's current GPU."""
    torch.cuda.manual_seed(seed)


@remote(propagate="inspect")
def manual_seed_all_cuda_remote(seed: int) -> None:
    """Seed all GPUs of each rank."""
    torch.cuda.manual_seed_all(seed)


@remote(propagate=lambda: [torch.zeros(1)])
def get_rng_state_all_cuda_remote() -> list[torch.Tensor]:
    """Return the states of all GPUs of each rank."""
    return torch.cuda.get_rng_state_all()


@remote(propagate="inspect")
def set_rng_state_all_cuda_remote(states: list[torch.Tensor]) -> None:
    """Go back to states of `get_rng_state_all_cuda_remote`."""
    torch.cuda.set_rng_state_all(states)
