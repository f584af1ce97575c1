"""Products of any number of rows with one tile, put together from the loops for 8, 4, 3, 2 and 1 rows.

It knows no model and no threads.
"""

from grimboost.kernels.compiled import kernel
from grimboost.kernels.tiles import GROUP, tile_product

_eight, _four, _three, _two, _one = (tile_product(rows) for rows in (8, 4, 3, 2, 1))


@kernel()
def tile_rows(format, w, x, x_stride, block_stride, scales, sums, steps, out, stride, rows, add):
    """One tile for any number of rows; arguments as in `tile_product`.

    `block_stride`: between blocks of 8 rows, in bytes of codes; scales and sums lie an eighth of that apart.
    """
    row, side = 0, block_stride // GROUP * 4
    while rows - row >= 8:
        _eight(format, w, x, x_stride, scales, sums, steps, out, stride, add)
        row, x, scales, sums, out = row + 8, x + block_stride, scales + side, sums + side, out + 8 * stride
    if rows - row >= 4:
        _four(format, w, x, x_stride, scales, sums, steps, out, stride, add)
        row, x, scales, sums, out = row + 4, x + 4 * x_stride, scales + 16, sums + 16, out + 4 * stride
    if rows - row == 3:
        _three(format, w, x, x_stride, scales, sums, steps, out, stride, add)
    elif rows - row == 2:
        _two(format, w, x, x_stride, scales, sums, steps, out, stride, add)
    elif rows - row == 1:
        _one(format, w, x, x_stride, scales, sums, steps, out, stride, add)
