"""What runner/ and versions.py ask of the other processes of a tensor-parallel engine; parallel/ has them."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.merged import LayerMatrices
from lorafleet_engine.runner.copier import Copier
from lorafleet_engine.runner.packing import StepShape
from lorafleet_engine.runner.pool import DevicePool


class Team(Protocol):
    """They do what this process does: each call comes right before this process does it itself."""

    def step(self, ints: npt.NDArray[np.int32], shape: StepShape) -> None:
        """A packed step is run."""
        ...

    def share(self, tokens: torch.Tensor) -> None:
        """Give them the tokens sampled last: everywhere the next step finds the same ones."""
        ...

    def copier(self, pool: DevicePool, whole: ModelShape) -> Copier:
        """Brings versions for a model of `whole` shape to every device: into `pool` here, into the same pages there."""
        ...

    def matrices(self, pool: DevicePool, resident: Resident, layer: int) -> LayerMatrices:
        """What DevicePool.matrices_of gives, of the whole model."""
        ...

    def merge(self, blob: BlobRef) -> None:
        """The weights are overwritten by those with an adapter added, packed in float32."""
        ...

    def close(self) -> None:
        """End them."""
        ...
