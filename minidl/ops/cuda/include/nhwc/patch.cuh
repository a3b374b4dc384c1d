// Patches of images in NHWC that the hardware copies, and the buffers of shared memory that take them in turn.

// A pixel, as an offset from another one.
struct Place {
    int n, h, w;
};

// A patch: images, rows and columns of y, which meet `lines` by `line` pixels of each image; its bytes, rounded up to a
// multiple of 1,024; how many patches hold an image's rows and columns; and whether squares are eight rows or eight
// images high.
struct Patch {
    int n, h, w, lines, line, bytes, high, wide, images;
};

// A square's first pixel in its patch.
__device__ __forceinline__ Place square_of(const Patch& patch, int number) {
    const int across = patch.w / 8, down = patch.images ? patch.h : patch.h / 8;
    const int row = number / across, block = row / down;
    return {block * (patch.images ? 8 : 1), (row - block * down) * (patch.images ? 1 : 8), (number - row * across) * 8};
}

// A square's i-th pixel, from its first one.
__device__ __forceinline__ Place pixel_of(const Patch& patch, Place square, int i) {
    (patch.images ? square.n : square.h) += i / 8;
    square.w += i % 8;
    return square;
}

// A patch's place, by its first pixel of y.
struct Tile {
    const Patch& patch;
    const ConvNhwc& g;
    int n, h, w;

    __device__ __forceinline__ Tile(const Patch& patch, const ConvNhwc& g, int number) : patch(patch), g(g) { go(number); }

    __device__ __forceinline__ void go(int number) {
        const int row = number / patch.wide, image = row / patch.high;
        w = (number - row * patch.wide) * patch.w;
        h = (row - image * patch.high) * patch.h;
        n = image * patch.n;
    }

    // Goes on by as many patches as `by`, itself a patch's place, is after the first one.
    __device__ __forceinline__ void skip(const Tile& by) {
        w += by.w;
        h += by.h;
        n += by.n;
        if (w >= patch.wide * patch.w) {
            w -= patch.wide * patch.w;
            h += patch.h;
        }
        if (h >= patch.high * patch.h) {
            h -= patch.high * patch.h;
            n += patch.n;
        }
    }

    // Rows of the filter that meet an image somewhere in the patch, from the first one to before the last; or one.
    __device__ __forceinline__ int first_row() const { return imin(g.kh - 1, imax(0, g.top - h - patch.h + 1)); }
    __device__ __forceinline__ int last_row() const { return imax(first_row() + 1, imin(g.kh, g.h - h + g.top)); }

    // Which pixel of y is there, or -1.
    __device__ __forceinline__ int index(const Place& at) const {
        const int image = n + at.n, row = h + at.h, column = w + at.w;
        return image < g.n && row < g.oh && column < g.ow ? (image * g.oh + row) * g.ow + column : -1;
    }

    // Which window of 2x2 pixels of y begins there, or -1.
    __device__ __forceinline__ int window(const Place& at) const {
        const int image = n + at.n, row = (h + at.h) / 2, column = (w + at.w) / 2, high = g.oh / 2, wide = g.ow / 2;
        return image < g.n && row < high && column < wide ? (image * high + row) * wide + column : -1;
    }
};

// Which of SIZE buffers is next, and the phase of its barriers.
template <int SIZE> struct Ring {
    int at = 0, parity = 0;

    __device__ __forceinline__ void next() {
        if (++at == SIZE) {
            at = 0;
            parity ^= 1;
        }
    }
};
