"""One matrix product whose unrolled side exists in shared memory alone, by multiply-add or on tensor cores."""
