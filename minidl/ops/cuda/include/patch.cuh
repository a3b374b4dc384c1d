// Patches of images in NHWC that the hardware copies, and the buffers of shared memory that take them in turn.

// A patch: images, rows and columns of y, which meet `lines` by `line` pixels of each image; its bytes, up to a multiple
// of 1,024; how many patches hold an image's rows and columns; and whether squares are eight rows or eight images high.
struct Patch {
    int n, h, w, lines, line, bytes, high, wide, images;
};

// A patch's place, by its first pixel of y.
struct Tile {
    const Patch& patch;
    const ConvNhwc& g;
    int n, h, w;

    __device__ __forceinline__ Tile(const Patch& patch, const ConvNhwc& g, int number) : patch(patch), g(g) {
        const int row = number / patch.wide, image = row / patch.high;
        w = (number - row * patch.wide) * patch.w;
        h = (row - image * patch.high) * patch.h;
        n = image * patch.n;
    }

    // Image, row and column of a square's first pixel, from here.
    __device__ __forceinline__ void square(int number, int& image, int& row, int& column) const {
        const int across = patch.w / 8, down = patch.images ? patch.h : patch.h / 8;
        const int line = number / across, block = line / down;
        column = (number - line * across) * 8;
        row = (line - block * down) * (patch.images ? 1 : 8);
        image = block * (patch.images ? 8 : 1);
    }

    // Rows of the filter that meet an image somewhere in the patch, from the first one to before the last; or one.
    __device__ __forceinline__ int first_row() const { return imin(g.kh - 1, imax(0, g.top - h - patch.h + 1)); }
    __device__ __forceinline__ int last_row() const { return imax(first_row() + 1, imin(g.kh, g.h - h + g.top)); }

    __device__ __forceinline__ int pixel(int i) const {
        int image, row, column;
        square(i / 64, image, row, column);
        image += n + (patch.images ? i % 64 / 8 : 0);
        row += h + (patch.images ? 0 : i % 64 / 8);
        column += w + i % 8;
        return image < g.n && row < g.oh && column < g.ow ? (image * g.oh + row) * g.ow + column : -1;
    }
};

// The next of SIZE buffers, and in which phase of their barriers.
template <int SIZE> struct Ring {
    int at = 0, parity = 0;

    __device__ __forceinline__ void next() {
        if (++at == SIZE) {
            at = 0;
            parity ^= 1;
        }
    }
};
