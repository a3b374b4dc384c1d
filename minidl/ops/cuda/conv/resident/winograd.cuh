// Images as Winograd's F(2,2) wants them: in each dimension the pixels x[2k], x[2k+1], x[2k+2] under two neighbouring
// outputs become x[2k] - x[2k+1], x[2k+1] and x[2k+2] - x[2k+1]. In both dimensions that makes nine planes of half the
// size of one: plane 3 * r + s has kind r of the rows and kind s of the columns.

struct Planes {
    int n, c, h, w, m, oh, ow, top, left;    // source planes, result maps and planes, padding
    int ph, pw, images;                      // a plane in shared memory; images there at a time
};

// Padded images [image][c][9][ph][pw] from `first` on, zeros beyond the last one.
__device__ __forceinline__ void load_planes(REAL* to, const REAL* x, int first, const Planes& p) {
    int sources = imin(p.images, p.n - first) * p.c, size = p.ph * p.pw;
    const REAL* from = x + first * p.c * p.h * p.w;
    Odometer at(THREADS_A_BLOCK, p.ph, p.pw);                // source plane, row, column
#pragma unroll 3
    for (int i = threadIdx.x; i < p.images * p.c * size; i += THREADS_A_BLOCK, at.next()) {
        bool there = at.high < sources;
        const REAL* source = from + (there ? at.high * p.h * p.w : 0);
        REAL line[3][3];
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            REAL pixel[3];
#pragma unroll
            for (int s = 0; s < 3; ++s)
                pixel[s] = inside(source, 2 * at.middle + r - p.top, 2 * at.low + s - p.left, there ? p.h : 0, p.w);
            line[r][0] = pixel[0] - pixel[1];
            line[r][1] = pixel[1];
            line[r][2] = pixel[2] - pixel[1];
        }
        REAL* plane = to + at.high * 8 * size + i;           // [source plane][0][row][column]
#pragma unroll
        for (int s = 0; s < 3; ++s) {
            plane[s * size] = line[0][s] - line[1][s];
            plane[(3 + s) * size] = line[1][s];
            plane[(6 + s) * size] = line[2][s] - line[1][s];
        }
    }
}
