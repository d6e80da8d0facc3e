"""Training that goes on when a rank dies: a loop whose ranks are brought back in the middle of it.

Example:
    In a `%%mesh` cell:

    >>> state = elastic.State(model=model, optimizer=optimizer, loader=loader)  # doctest: +SKIP
    >>> for state in elastic.run(state, until=10_000):                          # doctest: +SKIP
    ...     inputs, targets = state.batch
    ...     loss = criterion(state.model(inputs), targets)
    ...     state.optimizer.zero_grad()
    ...     loss.backward()
    ...     state.optimizer.step()
"""

from monarch_nb.elastic.loop import run
from monarch_nb.elastic.state import State
from monarch_nb.meshes.restarting.intensity import restart

__all__ = ["State", "restart", "run"]
