# SPDX-License-Identifier: Apache-2.0
"""Components, neighbors, a spectrum and clusters of public features, computed before any label is used.

- `oriented_gradients` measures how much of each direction of edge lies in each overlapping cell of an image,
  as a unit vector of square roots. It is insensitive to small shifts and to the strength of lines.
- `spectrum` returns the leading eigenvectors of D^-1/2 W D^-1/2, where W joins each row with its nearest
  rows, by exp(-distance^2 / (reach_i reach_j)), and reach is the distance of the 7th neighbor. They change
  slowly along the surfaces on which rows lie, so a few of them separate classes.

The same features and the same seed give the same result on one machine.

Guarantee  None is claimed: features are public under label privacy. Never pass a label to a function of this
           module, and do not use it if features are private too.
Source     Dalal, Triggs 2005 (gradients); Zelnik-Manor, Perona 2004 (local reach); Ng, Jordan, Weiss 2001
           (rows of unit length); Coifman, Lafon 2006 (diffusion); Arthur, Vassilvitskii 2007 (k-means++).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse
import torch
import torch.nn.functional as F
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = [
    "Components",
    "Neighbors",
    "Spectrum",
    "edges",
    "k_means",
    "nearest_neighbors",
    "oriented_gradients",
    "principal_components",
    "spectrum",
]

Floats = npt.NDArray[np.float64]
_REACH = 7  # which neighbor's distance is the local scale: Zelnik-Manor and Perona's choice
_ROWS_AT_ONCE = 1024
_SEEDING_ROWS = 20_000  # k-means++ chooses its starts among so many rows


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Components:
    """A mean, and the directions in which rows differ most from it.

    Attributes:
        mean: The mean, [columns].
        directions: Orthonormal directions [columns, components], largest variance first.
    """

    mean: Tensor
    directions: Tensor

    def of(self, features: Tensor) -> Tensor:
        """Return the coordinates of rows, those used before or others.

        Args:
            features: The rows, [rows, columns].

        Returns:
            The coordinates, [rows, components].
        """
        return (_rows(features) - self.mean) @ self.directions


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Neighbors:
    """The nearest other rows of each row, nearest first.

    Attributes:
        rows: Int64 [rows, neighbors].
        distances: [rows, neighbors].
    """

    rows: Tensor
    distances: Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Spectrum:
    """Leading eigenvalues and orthonormal eigenvectors of the graph of neighbors.

    Attributes:
        values: Float64 [dimensions], falling, from 1.
        vectors: Float64 [rows, dimensions].
    """

    values: Tensor
    vectors: Tensor

    def points(self, *, steps: int = 10) -> Tensor:
        """Return the place of each row after some steps of diffusion, scaled to unit length, for k-means.

        Args:
            steps: The number of steps of diffusion.

        Returns:
            Float32 [rows, dimensions].
        """
        _check.count(steps=steps)
        return F.normalize(self.vectors * self.values.clamp(min=0) ** steps, dim=1).float()


def oriented_gradients(images: Tensor, *, cell: int = 4, directions: int = 8) -> Tensor:
    """Return the directions of edges in each part of images.

    Args:
        images: [rows, height, width] or [rows, channels, height, width].
        cell: The side of a cell in pixels, even.
        directions: The number of directions.

    Returns:
        Float32 [rows, columns], of unit length.

    Raises:
        InvalidParameterError: If the shape or the cell are wrong.

    >>> oriented_gradients(torch.rand(3, 28, 28)).shape  # 8 directions in 7 x 7 cells
    torch.Size([3, 392])
    """
    _check.count(cell=cell, directions=directions)
    if images.dim() not in (3, 4) or min(images.shape[-2:]) < 2 * cell or cell % 2:
        raise InvalidParameterError(
            "images must be [rows, height, width] or [rows, channels, height, width], with sides of at least "
            f"two cells, and cell must be even; but cell={cell} and the shape is {list(images.shape)}."
        )
    planes = images if images.dim() == 4 else images.unsqueeze(1)
    parts = [_gradients_of(part, cell, directions) for part in planes.split(_ROWS_AT_ONCE)]
    return torch.cat(parts)


def _gradients_of(images: Tensor, cell: int, directions: int) -> Tensor:
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="replicate")
    right = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    angle = torch.atan2(down, right) * (directions / (2 * math.pi))
    away = (angle.unsqueeze(2) - torch.arange(directions, device=images.device).view(-1, 1, 1)) % directions
    share = (1 - torch.minimum(away, directions - away)).clamp(
        min=0
    )  # split between the two directions nearest
    edges = (share * torch.hypot(right, down).unsqueeze(2)).flatten(1, 2)
    cells = F.avg_pool2d(edges, 2 * cell, stride=cell, padding=cell // 2).flatten(1)
    return F.normalize(cells.sqrt(), dim=1)


def principal_components(features: Tensor, *, components: int) -> Components:
    """Return the mean and the leading principal directions of all rows, exactly, summed in float64.

    Args:
        features: The rows, [rows, columns].
        components: The number of directions.

    Returns:
        The mean and the directions.

    Raises:
        InvalidParameterError: If there are fewer columns than components.

    >>> found = principal_components(torch.tensor([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]), components=1)
    >>> found.of(torch.tensor([[3.0, 3.0]])).abs()
    tensor([[1.4142]])
    """
    rows = _rows(features)
    _check.count(components=components)
    if components > rows.shape[1]:
        raise InvalidParameterError(f"components={components}, but features have {rows.shape[1]} columns.")
    mean = rows.double().mean(0)
    scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=rows.device)
    for part in rows.split(_ROWS_AT_ONCE):
        apart = part.double() - mean
        scatter.addmm_(apart.T, apart)
    directions = torch.linalg.eigh(scatter).eigenvectors[:, -components:].flip(1)
    # An eigenvector and its negative are equally good: the sign is fixed so that machines agree.
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    return Components(mean=mean.to(rows.dtype), directions=directions.to(rows.dtype))


def nearest_neighbors(points: Tensor, *, neighbors: int) -> Neighbors:
    """Return the nearest other rows of each row, by exact search on the device of the points.

    Args:
        points: The rows, [rows, columns].
        neighbors: The number of neighbors of each row.

    Returns:
        The neighbors and their distances.

    Raises:
        InvalidParameterError: If there are too few rows.

    >>> nearest_neighbors(torch.tensor([[0.0], [1.0], [5.0]]), neighbors=1).rows.flatten()
    tensor([1, 0, 1])
    """
    rows = _rows(points)
    _check.count(neighbors=neighbors)
    if neighbors >= len(rows):
        raise InvalidParameterError(
            f"neighbors={neighbors}, but a row has {max(len(rows) - 1, 0)} other rows."
        )
    centered = rows - rows.mean(0)  # the expanded square below loses digits far from the origin
    squares = (centered**2).sum(1)
    found: list[Tensor] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = centered[start : start + _ROWS_AT_ONCE]
        apart = torch.addmm(squares, part, centered.T, alpha=-2)  # less |part|^2, the same for the whole row
        here = torch.arange(len(part), device=rows.device)
        apart[here, here + start] = math.inf
        found.append(apart.topk(neighbors, largest=False, sorted=True).indices)
    chosen = torch.cat(found)
    return Neighbors(rows=chosen, distances=_distances(rows, chosen))


def _distances(rows: Tensor, chosen: Tensor) -> Tensor:
    parts = zip(rows.split(_ROWS_AT_ONCE), chosen.split(_ROWS_AT_ONCE), strict=True)
    return torch.cat([(rows[there] - here.unsqueeze(1)).norm(dim=2) for here, there in parts])


def spectrum(neighbors: Neighbors, *, dimensions: int, tolerance: float = 1e-3) -> Spectrum:
    """Return the leading eigenvectors of the graph that joins each row with its neighbors, on the CPU.

    Args:
        neighbors: The neighbors of each row.
        dimensions: The number of eigenvectors.
        tolerance: The relative accuracy of eigenvalues.

    Returns:
        The spectrum.

    Raises:
        InvalidParameterError: If there are too few rows.

    >>> sides = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]])
    >>> found = spectrum(nearest_neighbors(sides, neighbors=2), dimensions=2)
    >>> found.values  # two parts that nothing joins
    tensor([1., 1.], dtype=torch.float64)
    """
    size = len(neighbors.rows)
    _check.count(dimensions=dimensions)
    _check.positive(tolerance=tolerance)
    if dimensions >= size - 1:
        raise InvalidParameterError(
            f"dimensions={dimensions}, but {size} rows allow {max(size - 2, 0)} at most."
        )
    weights = edges(neighbors)
    degrees = np.asarray(weights.sum(axis=1)).ravel()
    scale = sparse.diags(np.where(degrees > 0, degrees, 1.0) ** -0.5)
    known = _vectors_of_parts(weights, degrees, dimensions)
    values, vectors = _leading(scale @ weights @ scale, known, dimensions, tolerance)
    return Spectrum(values=torch.from_numpy(values), vectors=torch.from_numpy(vectors))


def edges(neighbors: Neighbors) -> Any:
    """Return the weights of the graph that joins each row with its neighbors.

    Two rows are joined if either chose the other, by exp(-distance^2 / (reach_i reach_j)).

    Args:
        neighbors: The neighbors of each row.

    Returns:
        The weights, a symmetric sparse matrix of scipy [rows, rows].

    >>> edges(nearest_neighbors(torch.tensor([[0.0], [1.0], [5.0]]), neighbors=1)).nnz  # 0-1 and 1-2
    4
    """
    rows = neighbors.rows.cpu().numpy()
    distances = neighbors.distances.double().cpu().numpy()
    size, count = rows.shape
    reach = distances[:, min(_REACH, count) - 1]
    between = reach[:, None] * reach[rows]
    # Where a row has that many copies its reach is 0: copies are joined fully, other rows not at all.
    alike = np.where(distances > 0, 0.0, 1.0)
    weights = np.where(between > 0, np.exp(-(distances**2) / np.where(between > 0, between, 1.0)), alike)
    starts = np.repeat(np.arange(size), count)
    joined = sparse.csr_matrix((weights.ravel(), (starts, rows.ravel())), shape=(size, size))
    joined = sparse.csr_matrix(joined.maximum(joined.T))
    joined.eliminate_zeros()  # what is left joins two rows: parts are found by it
    return joined


def _vectors_of_parts(graph: Any, degrees: Floats, most: int) -> Floats:
    """Return the eigenvectors of value 1, one for each connected part, largest first.

    They are computed in closed form because Lanczos' method finds one vector of a repeated eigenvalue.
    """
    part = connected_components(graph, directed=False)[1]
    weights = np.bincount(part, weights=degrees)
    largest = np.argsort(-weights, kind="stable")[: min(most, np.count_nonzero(weights))]
    return np.sqrt(degrees)[:, None] * (part[:, None] == largest) / np.sqrt(weights[largest])


def _leading(graph: Any, known: Floats, dimensions: int, tolerance: float) -> tuple[Floats, Floats]:
    """Return the leading eigenvalues and vectors, of which some with value 1 are known."""
    size, found = known.shape
    left = dimensions - found
    if left == 0:
        return np.ones(found), known
    start = np.random.default_rng(0).standard_normal(size)  # fixed, so that results repeat
    start -= known @ (known.T @ start)

    def without(vector: Floats) -> Floats:  # the known vectors' eigenvalue becomes -1: never a leading one
        return graph @ vector - 2 * (known @ (known.T @ vector))

    operator = LinearOperator((size, size), matvec=without, dtype=np.float64)  # pyright: ignore[reportCallIssue] - its stub knows no arguments
    held = min(size, 2 * left + 2)
    values, vectors = eigsh(operator, k=left, which="LA", v0=start, ncv=held, tol=tolerance)  # pyright: ignore[reportArgumentType] - its stub takes 0 only
    order = np.argsort(-values)
    together = np.concatenate([known, vectors[:, order]], axis=1)
    return np.concatenate([np.ones(found), np.minimum(values[order], 1.0)]), together


def k_means(points: Tensor, *, clusters: int, seed: int = 0, rounds: int = 30) -> Tensor:
    """Return the cluster of each row, by rounds of Lloyd from a k-means++ start.

    A cluster may have no rows, if fewer rows than clusters are distinct.

    Args:
        points: The rows, [rows, columns].
        clusters: The number of clusters.
        seed: The seed of the start.
        rounds: The largest number of rounds.

    Returns:
        The cluster of each row from 0, int64 on the CPU.

    Raises:
        InvalidParameterError: If there are fewer rows than clusters.

    >>> k_means(torch.tensor([[0.0], [0.1], [9.0]]), clusters=2).bincount().sort().values
    tensor([1, 2])
    """
    rows = _rows(points)
    _check.count(clusters=clusters, rounds=rounds)
    _check.non_negative(seed=seed)
    if clusters > len(rows):
        raise InvalidParameterError(f"clusters={clusters}, but there are {len(rows)} rows.")
    centers = _spread_out(rows, clusters, torch.Generator().manual_seed(seed))
    chosen = _nearest_center(rows, centers)
    for _ in range(rounds):
        counts = chosen.bincount(minlength=clusters).unsqueeze(1)
        sums = torch.zeros_like(centers).index_add_(0, chosen, rows)
        centers = torch.where(counts > 0, sums / counts.clamp(min=1), centers)
        before, chosen = chosen, _nearest_center(rows, centers)
        if torch.equal(before, chosen):
            break
    return chosen.cpu()


def _spread_out(rows: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Return rows to start from: each is drawn in proportion to its squared distance from those before."""
    sample = torch.randperm(len(rows), generator=generator)[: max(_SEEDING_ROWS, clusters)]
    among = rows[sample.to(rows.device)]
    chosen = [0]
    apart = torch.full((len(among),), math.inf, device=rows.device, dtype=rows.dtype)
    draws = torch.rand(clusters, generator=generator, dtype=torch.float64).tolist()
    for draw in draws[1:]:
        apart = torch.minimum(apart, ((among - among[chosen[-1]]) ** 2).sum(1))
        ends = apart.double().cumsum(0)
        chosen.append(min(int(torch.searchsorted(ends, draw * ends[-1], right=True)), len(among) - 1))
    return among[chosen]


def _nearest_center(rows: Tensor, centers: Tensor) -> Tensor:
    squares = (centers**2).sum(1)
    parts = rows.split(_ROWS_AT_ONCE)
    return torch.cat([torch.addmm(squares, part, centers.T, alpha=-2).argmin(1) for part in parts])


def _rows(features: Tensor) -> Tensor:
    if features.dim() != 2 or not len(features) or features.dtype not in (torch.float32, torch.float64):
        raise InvalidParameterError(
            f"features must be a float32 or float64 tensor [rows, columns] with a row at least, but they are "
            f"{features.dtype} of shape {list(features.shape)}. Flatten images first."
        )
    if not bool(features.isfinite().all()):
        raise InvalidParameterError("features must be finite numbers: fill in or drop what is missing.")
    return features
