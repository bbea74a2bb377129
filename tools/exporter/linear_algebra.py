"""Functions of matrices that torch.onnx does not write, by elimination, and by turning pairs of columns."""
import torch

from .errors import NotExported, place_of_call

MOST_COLUMNS, SWEEPS = 64, 9  # that are turned; more would make too many steps


def matrix_exp(A):
    """By scaling and squaring (Higham, 2005): the series of A·2⁻ⁿ, of a norm of at most 1/2, whose square is taken n times."""
    size = A.detach().abs().sum(-2).amax(-1)[..., None, None].clamp(min=1e-30)
    count = (size.log2().ceil() + 1).clamp(0, 24)
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    scaled, out = A * torch.exp2(-count), one
    for k in range(14, 0, -1):
        out = one + (scaled @ out) / k
    for k in range(24):
        out = torch.where(count > k, out @ out, out)
    return out


def solve(A, B, left=True):
    """By elimination (Gauss-Jordan), with the largest number of each column as its pivot."""
    if not left:
        return solve(A.mT, B.mT).mT
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    size = A.shape[-1]
    lead = torch.broadcast_shapes(A.shape[:-2], right.shape[:-2])
    rows = torch.cat([A.expand(*lead, size, size), right.expand(*lead, size, right.shape[-1])], -1)
    place = torch.arange(size, device=A.device)
    for k in range(size):
        pivot = torch.where(place < k, -1.0, rows[..., k].detach().abs()).argmax(-1, keepdim=True)
        order = torch.where(place == k, pivot, torch.where(place == pivot, torch.full_like(place, k), place))
        rows = rows.gather(-2, order.unsqueeze(-1).expand(*order.shape, rows.shape[-1]))
        row = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        rows = torch.where((place == k).unsqueeze(-1), row, rows - rows[..., k : k + 1] * row)
    found = rows[..., size:]
    return found.squeeze(-1) if vector else found


def inverse(A):
    return solve(A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand(A.shape))  # of all dims, or it may be taken for vectors


def cholesky(A, upper=False):
    """Column by column. It reads one triangle, and its gradient is that of symmetric matrices."""
    if upper:
        return cholesky(A.mT).mT
    half, columns = (A + A.mT) / 2, []
    rest = half + (A.tril() + A.tril(-1).mT - half).detach()
    place = torch.arange(A.shape[-1], device=A.device)
    for k in range(A.shape[-1]):
        column = rest[..., k] / rest[..., k, k].sqrt().unsqueeze(-1)
        columns.append(torch.where(place < k, torch.zeros_like(column), column))
        rest = rest - columns[-1].unsqueeze(-1) * columns[-1].unsqueeze(-2)
    return torch.stack(columns, -1)


def cholesky_unless(A, *, upper=False, check_errors=False, out=None, result=torch.return_types.linalg_cholesky_ex):
    """With what PyTorch says of where it has failed: nowhere. A matrix that has no root makes numbers that are not finite."""
    return result([cholesky(A, upper), torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device)])


def inverse_unless(A, *, check_errors=False, out=None, result=torch.return_types.linalg_inv_ex):
    return result([inverse(A), torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device)])


def pivots_of(A):
    """The pivots of elimination, and the sign of the order that it puts rows in."""
    rows, pivots, place = A, [], torch.arange(A.shape[-1], device=A.device)
    sign = torch.ones_like(A[..., 0, 0])
    for k in range(A.shape[-1]):
        pivot = torch.where(place < k, -1.0, rows[..., k].detach().abs()).argmax(-1, keepdim=True)
        sign = torch.where(pivot.squeeze(-1) == k, sign, -sign)
        order = torch.where(place == k, pivot, torch.where(place == pivot, torch.full_like(place, k), place))
        rows = rows.gather(-2, order.unsqueeze(-1).expand(rows.shape))
        pivots.append(rows[..., k, k])
        row = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        rows = torch.where((place > k).unsqueeze(-1), rows - rows[..., k : k + 1] * row, rows)
    return torch.stack(pivots, -1), sign


def determinant(A):
    pivots, sign = pivots_of(A)
    for pivot in pivots.unbind(-1):
        sign = sign * pivot
    return sign


def sign_and_log_determinant(A, result=torch.return_types.linalg_slogdet):
    pivots, sign = pivots_of(A)
    for pivot in pivots.detach().sign().unbind(-1):
        sign = sign * pivot
    return result([sign, pivots.abs().log().sum(-1)])


def log_determinant(A):
    sign, found = sign_and_log_determinant(A)
    return torch.where(sign < 0, torch.nan, found)


def qr(A, mode="reduced", result=torch.return_types.linalg_qr):
    """By Gram-Schmidt, each column twice, with the signs that LAPACK's reflections give it."""
    rows, columns = A.shape[-2:]
    if mode == "complete" and rows > columns:
        return torch.linalg.qr(A, mode)
    signs, found = signs_of_reflections(A.detach()), []
    for k in range(min(rows, columns)):
        rest = A[..., k : k + 1]
        for _ in range(2 if found else 0):
            known = torch.cat(found, -1)
            rest = rest - known @ (known.mT @ rest)
        found.append(rest / torch.linalg.vector_norm(rest, dim=-2, keepdim=True) * signs[k])
    Q = torch.cat(found, -1)
    return result([Q if mode != "r" else Q.new_zeros(0), (Q.mT @ A).triu()])


def signs_of_reflections(A):
    """Of the diagonal of R, by column. A column that has nothing below the diagonal is not turned."""
    R, signs, place = A, [], torch.arange(A.shape[-2], device=A.device)
    for k in range(min(A.shape[-2:])):
        below = torch.where(place >= k, R[..., k], 0.0)
        turned, head = below - torch.where(place == k, below, 0.0), below[..., k : k + 1]
        is_turned = (turned != 0).any(-1, keepdim=True)
        first = torch.where(is_turned, -torch.linalg.vector_norm(below, dim=-1, keepdim=True) * torch.where(head < 0, -1.0, 1.0), head)
        signs.append(torch.where(first < 0, -1.0, 1.0).unsqueeze(-1))
        vector = (below - torch.where(place == k, first, 0.0)).unsqueeze(-1)
        square = (vector.mT @ vector)
        R = R - vector @ (vector.mT @ R) * torch.where(square > 0, 2 / torch.where(square > 0, square, 1.0), 0.0)
    return signs


def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    """Row by row."""
    if not left:
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    size, found = A.shape[-1], []
    for k in reversed(range(size)) if upper else range(size):
        row = B[..., k : k + 1, :]
        if found:
            known = torch.cat(found[::-1] if upper else found, -2)
            row = row - A[..., k : k + 1, k + 1 :] @ known if upper else row - A[..., k : k + 1, :k] @ known
        found.append(row if unitriangular else row / A[..., k : k + 1, k : k + 1])
    return torch.cat(found[::-1] if upper else found, -2)


def cholesky_solve(B, L, upper=False):
    lower = L.mT if upper else L
    return solve_triangular(lower.mT, solve_triangular(lower, B, upper=False), upper=True)


def least_squares(A, B, rcond=None, *, driver=None, result=torch.return_types.linalg_lstsq):
    """Of a matrix of full rank, which drivers but 'gels' find out."""
    vector = B.dim() == A.dim() - 1 and B.shape == A.shape[:-1]
    right, (rows, columns) = B.unsqueeze(-1) if vector else B, A.shape[-2:]
    if rows >= columns:
        Q, R = qr(A)
        found = solve_triangular(R, Q.mT @ right, upper=True)
    else:
        Q, R = qr(A.mT)
        found = Q @ solve_triangular(R.mT, right, upper=False)
    rest = (A @ found - right).square().sum(-2) if rows > columns else A.new_zeros(0)
    rank = torch.full(A.shape[:-2], min(rows, columns), dtype=torch.int64, device=A.device)
    return result([found.squeeze(-1) if vector else found, rest, rank, A.new_zeros(0)])


def pseudo_inverse(A, *tolerances, **options):
    """Of a matrix of full rank."""
    return least_squares(A, torch.eye(A.shape[-2], dtype=A.dtype, device=A.device).expand(*A.shape[:-1], A.shape[-2])).solution


def householder_product(A, tau):
    """Of reflections, of each of which A holds what is below the diagonal."""
    found = torch.eye(*A.shape[-2:], dtype=A.dtype, device=A.device)
    vectors = A.tril(-1) + found
    for k in reversed(range(tau.shape[-1])):
        vector = vectors[..., k : k + 1]
        found = found - tau[..., k, None, None] * (vector @ (vector.mT @ found))
    return found


def turned(A):
    """(A V, V) with an orthogonal V that makes the columns of A V orthogonal: pairs of them are turned, all pairs in each sweep (Hestenes, 1958), half as many at once as there
    are columns, which meet as players do in a round-robin tournament (Brent and Luk, 1985)."""
    rows, columns = A.shape[-2:]
    if columns > MOST_COLUMNS:
        raise NotExported(f"singular values, or eigenvalues, of {columns} columns are not supported{place_of_call()}: at most {MOST_COLUMNS} are. Compute them outside of the module, or "
                          "take another norm")
    half = (columns + 1) // 2
    X = torch.cat([A, torch.eye(columns, dtype=A.dtype, device=A.device).expand(*A.shape[:-2], columns, columns)], -2)
    X = torch.cat([X, torch.zeros_like(X[..., : 2 * half - columns])], -1)
    top, bottom = [*range(half)], [*range(half, 2 * half)]
    order = torch.tensor(top + bottom if half == 1 else [0, bottom[0], *top[1:-1], *bottom[1:], top[-1]], device=A.device)
    for _ in range(SWEEPS * max(2 * half - 1, 1) if columns > 1 else 0):
        first, second = X[..., :half], X[..., half:]
        one, other = first[..., :rows, :], second[..., :rows, :]
        both = (one * other).sum(-2, keepdim=True)
        ratio = (other.square().sum(-2, keepdim=True) - one.square().sum(-2, keepdim=True)) / torch.where(both == 0, 1.0, 2 * both)
        tangent = torch.where(both == 0, 0.0, torch.where(ratio < 0, -1.0, 1.0) / (ratio.abs() + (1 + ratio.square()).sqrt()))
        cosine = (1 + tangent.square()).rsqrt()
        X = torch.cat([first - tangent * second, tangent * first + second], -1) * torch.cat([cosine, cosine], -1)
        X = X.index_select(-1, order)
    return X[..., :rows, :columns], X[..., rows:, :columns]


def in_order(values, vectors, descending):
    values, order = values.sort(-1, descending)
    return values, *(one.gather(-1, order.unsqueeze(-2).expand(one.shape)) for one in vectors)


def gaps(values):
    """1 / (values[j] - values[i]), and zero where they are equal."""
    off = values.unsqueeze(-2) - values.unsqueeze(-1)
    return torch.where(off == 0, 0.0, 1 / torch.where(off == 0, 1.0, off))


def eigenvalues(A, UPLO="L", result=torch.return_types.linalg_eigh):
    """Of a symmetric matrix, of which it reads one triangle, and its vectors, whose signs are open. What is zero adds the slopes (Giles, 2008)."""
    known = A.detach()
    known = known.tril() + known.tril(-1).mT if UPLO == "L" else known.triu() + known.triu(1).mT
    size = 2 * torch.linalg.vector_norm(known, dim=(-2, -1), keepdim=True)
    vectors = turned(known + size * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))[1]
    values, vectors = in_order((vectors * (known @ vectors)).sum(-2), [vectors], False)
    half = (A + A.mT) / 2
    slope = vectors.mT @ (half - half.detach()) @ vectors
    return result([values + slope.diagonal(dim1=-2, dim2=-1), vectors + vectors @ (gaps(values) * slope)])


def singular_values(A, full_matrices=True, *, driver=None, out=None, result=torch.return_types.linalg_svd):
    """With their vectors, whose signs are open. What is zero adds the slopes (Giles, 2008)."""
    rows, columns = A.shape[-2:]
    if full_matrices and rows != columns:
        raise NotExported(f"svd with full_matrices of a matrix that is not square is not supported{place_of_call()}: say full_matrices=False")
    if rows < columns:
        U, S, Vh = singular_values(A.mT, False)
        return result([Vh.mT, S, U.mT])
    found, V = turned(A.detach())
    S, U, V = in_order(torch.linalg.vector_norm(found, dim=-2), [found, V], True)
    least = torch.finfo(A.dtype).tiny
    U, change, by = U / S.clamp(min=least).unsqueeze(-2), A - A.detach(), S.unsqueeze(-2)
    slope, gap = U.mT @ change @ V, gaps(S.square())
    rest = change @ V - U @ slope
    values = S + slope.diagonal(dim1=-2, dim2=-1)
    left = U + U @ (gap * (slope * by + (slope * by).mT)) + rest / by.clamp(min=least)
    return result([left, values, (V + V @ (gap * (by.mT * slope + (by.mT * slope).mT))).mT])


def singular_values_alone(A, *, driver=None, out=None):
    return singular_values(A, False)[1]


def svd(A, some=True, compute_uv=True, result=torch.return_types.svd):
    U, S, Vh = singular_values(A, not some)
    return result([U, S, Vh.mT] if compute_uv else [torch.zeros_like(U), S, torch.zeros_like(Vh.mT)])


def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    if ord not in ("nuc", 2, -2):
        return torch.linalg.matrix_norm(A, ord, dim, keepdim, dtype=dtype)
    values = singular_values_alone(A.movedim(dim, (-2, -1)))
    found = values.sum(-1) if ord == "nuc" else values[..., 0] if ord == 2 else values[..., -1]
    for at in sorted(one % A.dim() for one in dim) if keepdim else []:
        found = found.unsqueeze(at)
    return found


def norm(A, ord=None, dim=None, keepdim=False, *, out=None, dtype=None):
    dims = (0, 1) if dim is None and A.dim() == 2 else dim
    if ord in ("nuc", 2, -2) and isinstance(dims, (tuple, list)) and len(dims) == 2:
        return matrix_norm(A, ord, dims, keepdim)
    return torch.linalg.norm(A, ord, dim, keepdim, dtype=dtype)


BY_ELIMINATION = {
    "linalg_eigh": eigenvalues, "linalg_eigvalsh": lambda A, UPLO="L": eigenvalues(A, UPLO)[0], "linalg_matrix_norm": matrix_norm, "linalg_norm": norm, "linalg_svd": singular_values, "linalg_svdvals": singular_values_alone, "svd": svd,
    "cholesky": cholesky, "cholesky_solve": cholesky_solve, "det": determinant, "inverse": inverse, "linalg_cholesky": cholesky, "linalg_cholesky_ex": cholesky_unless, "linalg_inv_ex": inverse_unless, "linalg_det": determinant, "linalg_householder_product": householder_product,
    "linalg_inv": inverse, "linalg_lstsq": least_squares, "linalg_pinv": pseudo_inverse, "pinverse": pseudo_inverse, "linalg_matrix_exp": matrix_exp, "linalg_qr": qr, "linalg_slogdet": sign_and_log_determinant, "linalg_solve": solve,
    "linalg_solve_triangular": solve_triangular, "logdet": log_determinant, "matrix_exp": matrix_exp, "slogdet": sign_and_log_determinant,
}
