/* The four steps of the 2009 report on a CPU: plain loops, in the order in which PMPP prints them (Figs. 16.4 to 16.9).

   Images have 3 channels of 32 x 32, with 4 pixels of zeros at the top and left and 3 at the bottom and right; filters
   are 8 x 8; averages are of 4 x 4. n images, m filters. A loop's limits leave out the zeros around an image. */

#define C 3
#define SIDE 32
#define K 8
#define TOP 4
#define POOL 4
#define SMALL (SIDE / POOL)

/* Rows of a filter that meet the image at output row i, and rows of outputs at which row p of a filter does. */
static int first(int i) { return i < TOP ? TOP - i : 0; }
static int last(int i) { return SIDE + TOP - i < K ? SIDE + TOP - i : K; }
static int begin(int p) { return p < TOP ? TOP - p : 0; }
static int end(int p) { return SIDE + TOP - p < SIDE ? SIDE + TOP - p : SIDE; }

/* Section 6.2: x (n,C,32,32), w (m,C,8,8) -> y (n,m,32,32) */
void forward(const float *x, const float *w, float *y, int n, int m) {
    for (int a = 0; a < n; a++)
        for (int b = 0; b < m; b++)
            for (int i = 0; i < SIDE; i++)
                for (int j = 0; j < SIDE; j++) {
                    float sum = 0;
                    for (int c = 0; c < C; c++)
                        for (int p = first(i); p < last(i); p++)
                            for (int q = first(j); q < last(j); q++)
                                sum += x[((a * C + c) * SIDE + i + p - TOP) * SIDE + j + q - TOP] *
                                       w[((b * C + c) * K + p) * K + q];
                    y[((a * m + b) * SIDE + i) * SIDE + j] = sum;
                }
}

/* Section 6.3: y (n,m,32,32) -> s (n,m,8,8) */
void averages(const float *y, const float *unused, float *s, int n, int m) {
    for (int plane = 0; plane < n * m; plane++)
        for (int i = 0; i < SMALL; i++)
            for (int j = 0; j < SMALL; j++) {
                float sum = 0;
                for (int p = 0; p < POOL; p++)
                    for (int q = 0; q < POOL; q++)
                        sum += y[(plane * SIDE + i * POOL + p) * SIDE + j * POOL + q];
                s[(plane * SMALL + i) * SMALL + j] = sum / (POOL * POOL);
            }
}

/* Section 6.5: gs (n,m,8,8) -> gy (n,m,32,32) */
void supersampling(const float *gs, const float *unused, float *gy, int n, int m) {
    for (int plane = 0; plane < n * m; plane++)
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++)
                gy[(plane * SIDE + i) * SIDE + j] =
                    gs[(plane * SMALL + i / POOL) * SMALL + j / POOL] / (POOL * POOL);
}

/* Sections 6.6 and 6.7: gy (n,m,32,32), x (n,C,32,32) -> gw (m,C,8,8), the sum over the images */
void gradient(const float *gy, const float *x, float *gw, int n, int m) {
    for (int k = 0; k < m * C * K * K; k++) gw[k] = 0;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < m; b++)
            for (int c = 0; c < C; c++)
                for (int p = 0; p < K; p++)
                    for (int q = 0; q < K; q++) {
                        float sum = 0;
                        for (int i = begin(p); i < end(p); i++)
                            for (int j = begin(q); j < end(q); j++)
                                sum += gy[((a * m + b) * SIDE + i) * SIDE + j] *
                                       x[((a * C + c) * SIDE + i + p - TOP) * SIDE + j + q - TOP];
                        gw[((b * C + c) * K + p) * K + q] += sum;
                    }
}
