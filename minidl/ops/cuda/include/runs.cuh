// Products of matrices in equal runs of slabs (stream-K): all slabs of all tiles of all products form one sequence, and
// each block takes an equal run of it, across tiles. So all blocks are done at the same time, whatever the sizes are. A
// block's sum over its slabs of a tile is a part; code that reads a sum adds up the parts of its tile, in their order.
//
// Tiles of a product are numbered down its columns, since neighbours then read the same slabs of the larger matrix. A
// block's number grows along the sequence, and so does a tile's: part (block + tile) belongs to one pair of them.
struct Runs {
    int rows, cols, depth;  // of each product
    int high, wide;         // a tile
    int down, across;       // tiles of a product
    int slabs, each, all;   // of a tile; of a run; together
    int accumulate;         // add to what the parts are
};
