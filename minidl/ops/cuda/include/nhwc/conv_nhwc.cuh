// Sizes of a convolution of images in NHWC. -DIMAGE: what their numbers are stored as.

// n images read, c x h x w, and written, m x oh x ow; taps. Row `at` of what is written meets, at tap r, row
// (at * sh - top + r) / divided_h of what is read, if that has no remainder. sum: numbers of a padded row of filters;
// there are `filters` such rows.
struct ConvNhwc {
    int n, c, h, w, m, kh, kw, oh, ow, sh, sw, top, left, divided_h, divided_w, sum, filters;
};

constexpr int DEPTH = 128 / (int)sizeof(IMAGE);                          // numbers of a sum in a slab

// Which filter a row of packed ones is: COUNT of a lane's sums are neighbours in y, a pair of each 8 columns.
template <int COUNT> __device__ __forceinline__ int filter_of_row(int row) {
    const int within = row % (4 * COUNT);
    return row - within + within % 8 / 2 * COUNT + within / 8 * 2 + within % 2;
}
