// Products of matrices in equal runs of slabs (stream-K): all slabs of all tiles of all products stand in one line, and
// each block takes as many in a row, across tiles. So all are done at the same time, whatever the sizes are. What a
// block sums up of a tile is a part; whoever reads a sum adds up the parts of its tile, in their order.
//
// Tiles of a product are numbered down its columns, since neighbours then read the same slabs of the larger matrix. A
// block's number grows along the line, and so does a tile's: part (block + tile) belongs to one pair of them.
struct Runs {
    int rows, cols, depth;  // of each product
    int high, wide;         // a tile
    int down, across;       // tiles of a product
    int slabs, each, all;   // of a tile; of a run; together
    int accumulate;         // add to what the parts are
};
