"""What the sources print: PMPP chapter 16, the lecture, and Krizhevsky's report of 2009. `auto` tries gemm alone."""
