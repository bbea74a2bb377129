"""Functions of matrices that torch.onnx does not write, by elimination."""
import torch


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


BY_ELIMINATION = {
    "cholesky": cholesky, "cholesky_solve": cholesky_solve, "det": determinant, "inverse": inverse, "linalg_cholesky": cholesky, "linalg_cholesky_ex": cholesky_unless, "linalg_inv_ex": inverse_unless, "linalg_det": determinant, "linalg_householder_product": householder_product,
    "linalg_inv": inverse, "linalg_lstsq": least_squares, "linalg_pinv": pseudo_inverse, "pinverse": pseudo_inverse, "linalg_matrix_exp": matrix_exp, "linalg_qr": qr, "linalg_slogdet": sign_and_log_determinant, "linalg_solve": solve,
    "linalg_solve_triangular": solve_triangular, "logdet": log_determinant, "matrix_exp": matrix_exp, "slogdet": sign_and_log_determinant,
}
