"""The pool's memory on the device, and versions written into it. Used by runner.py, copier.py and bench/."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.memory.geometry import RESERVED_PAGES, ZERO_PAGE, PoolGeometry, page_slices, row_places
from lorafleet_engine.memory.residency import Resident

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class DevicePool:
    """One array of pages, with its two views, and the table that says where every resident row of rank lies.

    cache [rows, kv_heads * dim] and granules [n, G] are the same memory. row_table [layers * layer_columns, table_rows]
    holds the granule where a row of rank begins, by layer, projection and side (A, B); row 0 names zeros only.
    """

    def __init__(
        self, geometry: PoolGeometry, pages: int, table_rows: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._geometry = geometry
        self.memory = torch.zeros(pages * geometry.page_elements, device=device, dtype=dtype)
        self.cache = self.memory.view(-1, geometry.cache_row)
        self.granules = self.memory.view(-1, geometry.granule)
        self._pages = self.memory.view(pages, geometry.page_elements)
        zero = ZERO_PAGE * geometry.page_granules
        columns = geometry.layers * geometry.layer_columns
        self.row_table = torch.full((columns, table_rows), zero, device=device, dtype=torch.int32)

    @property
    def geometry(self) -> PoolGeometry:
        """How the pool is cut."""
        return self._geometry

    @property
    def page_bytes(self) -> torch.Tensor:
        """The same memory as bytes, [pages, bytes of a page]."""
        return self._pages.view(torch.uint8)

    def install(self, resident: Resident, blob: torch.Tensor, module_ranks: Sequence[Sequence[int]]) -> None:
        """Copy a packed version (1-D, the pool's dtype) into its pages and enter its rows, at once."""
        data, pages = blob.view(torch.uint8), self.page_bytes
        for page, (start, size) in zip(resident.pages, page_slices(self._geometry, module_ranks), strict=True):
            pages[page, :size].copy_(data[start : start + size])
        self.enter_rows(resident, module_ranks)

    def enter_rows(self, resident: Resident, module_ranks: Sequence[Sequence[int]]) -> None:
        """Say in the row table where a version's rows lie, at once. row_staging.py does it beside steps."""
        granules = torch.from_numpy(self.row_granules(resident, module_ranks)).to(self.row_table.device)
        rows = torch.tensor(resident.rows, dtype=torch.int64).to(self.row_table.device)
        self.row_table.index_copy_(1, rows, granules)

    def row_granules(self, resident: Resident, module_ranks: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
        """The row table's columns [layers * layer_columns, rank] for a version's rows."""
        places = row_places(self._geometry, module_ranks, resident.rank)
        pages = np.asarray(resident.pages, dtype=np.int32)
        per_page = self._geometry.page_granules
        granules = pages[places // per_page] * per_page + places % per_page
        granules[places < 0] = ZERO_PAGE * per_page
        return granules

    def matrices_of(self, resident: Resident, layer: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Copies of a version's matrices in one layer by module: A [rank, in] and the scaled B transposed [rank, out].

        Where a module has a smaller rank the last rows are zeros.
        """
        geometry = self._geometry
        rows = torch.tensor(resident.rows, device=self.row_table.device)
        starts = self.row_table[layer * geometry.layer_columns : (layer + 1) * geometry.layer_columns, rows]
        sides = []
        for column, width in enumerate(width for pair in geometry.module_granules for width in pair):
            index = starts[column, :, None] + torch.arange(width, device=starts.device)
            sides.append(self.granules[index].flatten(1))
        return dict(zip(PROJECTIONS, zip(sides[::2], sides[1::2], strict=True), strict=True))

    def clear_reserved(self) -> None:
        """Zero the reserved pages (a graph's warm-up may have written to the scratch page)."""
        self._pages[:RESERVED_PAGES].zero_()
