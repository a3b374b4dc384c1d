"""Operations on arrays of any meaning: arithmetic, shapes, picked values, statistics, products of several."""
