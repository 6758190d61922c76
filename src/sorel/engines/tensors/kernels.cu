// Loops over rows and samples on a CUDA device, compiled at run time: products with X, thresholds
// and selections for two levels, and the exact pooling of a sorted vector.
//
// Sums over samples are taken per block of threads and then by the last block, always in the same
// order, so that results do not change from run to run. Blocks of threads have a power of two.

typedef long long integer;
typedef unsigned long long bits;

// Sums of two doubles: prefix sums over 1e7 keys in one would lose the digits that decide.

struct twofold {
  double hi, lo;
};

__device__ __forceinline__ twofold exact_sum(double a, double b) {
  double s = a + b, t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}

__device__ __forceinline__ twofold plus(twofold a, double b) {
  twofold s = exact_sum(a.hi, b);
  return exact_sum(s.hi, s.lo + a.lo);
}

__device__ __forceinline__ twofold plus(twofold a, twofold b) {
  twofold s = exact_sum(a.hi, b.hi);
  return exact_sum(s.hi, s.lo + (a.lo + b.lo));
}

__device__ __forceinline__ twofold minus(twofold a, twofold b) {
  return plus(a, twofold{-b.hi, -b.lo});
}

__device__ __forceinline__ twofold times(twofold a, double m) {
  double p = a.hi * m;
  return exact_sum(p, fma(a.hi, m, -p) + a.lo * m);
}

__device__ __forceinline__ bool above(twofold a, twofold b) {
  return a.hi > b.hi || (a.hi == b.hi && a.lo > b.lo);
}

// Products with X, whose rows follow each other in memory. Sums are double; numbers are read in
// packs, up to 16 bytes at a time.

template <typename real, int size>
struct alignas(sizeof(real) * size) pack {
  real x[size];
};

// `lanes` threads share a row; every thread has four rows under way.
template <typename real, int size, int lanes>
__device__ void margins(const pack<real, size>* X, const double* w, integer n, integer d,
                        double* out) {
  extern __shared__ double shared[];
  for (int j = threadIdx.x; j < d; j += blockDim.x) shared[j] = w[j];
  __syncthreads();
  const int lane = threadIdx.x % lanes, packs = d / size;
  const integer rows = blockDim.x / lanes, mine = threadIdx.x / lanes;
  for (integer first = 4 * rows * blockIdx.x; first < n; first += 4 * rows * gridDim.x) {
    const integer row = first + mine;
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    for (int j = lane; j < packs; j += lanes) {
      pack<real, size> read[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        // Beyond the end the last row is read again, and not written.
        const integer i = min(row + k * rows, n - 1);
        read[k] = X[i * packs + j];
      }
#pragma unroll
      for (int v = 0; v < size; v++) {
        const double weight = shared[j * size + v];
#pragma unroll
        for (int k = 0; k < 4; k++) sums[k] += (double)read[k].x[v] * weight;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      for (int step = lanes / 2; step > 0; step /= 2)
        sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], step);
      const integer i = row + k * rows;
      if (lane == 0 && i < n) out[i] = sums[k];
    }
  }
}

// A block of threads has some rows and up to `width` packs of each; consecutive threads read
// consecutive packs. With `skips`, rows without a weight are not read; with `squares`, the numbers
// are squared: the diagonal of a Gram matrix.
template <typename real, int size, bool skips, bool squares>
__device__ void adjoint(const pack<real, size>* X, const double* c, integer n, integer d,
                        integer height, integer width, double* parts) {
  extern __shared__ double shared[];
  const integer packs = d / size, column = blockIdx.y * width;
  const int columns = (int)min(width, packs - column), rows = blockDim.x / columns;
  const integer start = height * blockIdx.x, stop = min(n, start + height);
  double sums[size];
#pragma unroll
  for (int v = 0; v < size; v++) sums[v] = 0.0;
  if (threadIdx.x < rows * columns) {
    const pack<real, size>* base = X + column + threadIdx.x % columns;
    for (integer i = start + threadIdx.x / columns; i < stop; i += 4 * rows) {
      double weight[4];
      pack<real, size> read[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const integer row = i + k * rows;
        weight[k] = row < stop ? c[row] : 0.0;
        if (!skips) read[k] = base[min(row, stop - 1) * packs];
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (skips && weight[k] != 0.0) read[k] = base[(i + k * rows) * packs];
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int v = 0; v < size; v++) {
          if (skips && weight[k] == 0.0) continue;
          const double x = (double)read[k].x[v];
          sums[v] += weight[k] * (squares ? x * x : x);
        }
      }
    }
  }
#pragma unroll
  for (int v = 0; v < size; v++) {
    shared[threadIdx.x] = sums[v];
    __syncthreads();
    if (threadIdx.x < columns) {
      double sum = sums[v];
      for (int own = 1; own < rows; own++) sum += shared[own * columns + threadIdx.x];
      parts[blockIdx.x * d + (column + threadIdx.x) * size + v] = sum;
    }
    __syncthreads();
  }
}

// The largest |x| of each column; NaN where there is one.
template <typename real>
__device__ void columns(const real* X, integer n, integer d, integer height, integer width,
                        double* parts) {
  extern __shared__ double shared[];
  const integer column = blockIdx.y * width;
  const int columns = (int)min(width, d - column), rows = blockDim.x / columns;
  const integer start = height * blockIdx.x, stop = min(n, start + height);
  double most = 0.0;
  if (threadIdx.x < rows * columns) {
    const real* base = X + column + threadIdx.x % columns;
    for (integer i = start + threadIdx.x / columns; i < stop; i += 8 * rows) {
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const integer row = i + k * rows;
        const double x = row < stop ? fabs((double)base[row * d]) : 0.0;
        most = x <= most || most != most ? most : x;
      }
    }
  }
  shared[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x < columns) {
    for (int own = 1; own < rows; own++) {
      const double x = shared[own * columns + threadIdx.x];
      most = x <= most || most != most ? most : x;
    }
    parts[blockIdx.x * d + column + threadIdx.x] = most;
  }
}

#define MARGINS(real, size, lanes)                                                            \
  extern "C" __global__ void margins_##real##size##_##lanes(                                  \
      const pack<real, size>* X, const double* w, integer n, integer d, double* out) {        \
    margins<real, size, lanes>(X, w, n, d, out);                                              \
  }
#define ADJOINT(name, real, size, skips, squares)                                                    \
  extern "C" __global__ void name(const pack<real, size>* X, const double* c, integer n,      \
                                  integer d, integer height, integer width, double* parts) {  \
    adjoint<real, size, skips, squares>(X, c, n, d, height, width, parts);                    \
  }
#define PRODUCTS(real, size)                                                                  \
  MARGINS(real, size, 1)                                                                      \
  MARGINS(real, size, 4)                                                                      \
  MARGINS(real, size, 8)                                                                      \
  MARGINS(real, size, 32)                                                                     \
  ADJOINT(adjoint_##real##size, real, size, false, false)                                     \
  ADJOINT(adjoint_some_##real##size, real, size, true, false)                                 \
  ADJOINT(squares_##real##size, real, size, false, true)
#define COLUMNS(real)                                                                         \
  extern "C" __global__ void columns_##real(const real* X, integer n, integer d,              \
                                            integer height, integer width, double* parts) {   \
    columns<real>(X, n, d, height, width, parts);                                             \
  }
PRODUCTS(double, 1)
PRODUCTS(double, 2)
PRODUCTS(float, 1)
PRODUCTS(float, 4)
COLUMNS(double)
COLUMNS(float)

// Adds up `count` sums of every thread. True in the last block alone, whose first thread then has
// the totals of all blocks in `sums`.
__device__ bool add_up(double* sums, int count, double* parts, unsigned* ticket) {
  __shared__ double room[256];
  __shared__ bool last;
  for (int k = 0; k < count; k++) {
    room[threadIdx.x] = sums[k];
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
      if (threadIdx.x < step) room[threadIdx.x] += room[threadIdx.x + step];
      __syncthreads();
    }
    if (threadIdx.x == 0) parts[k * gridDim.x + blockIdx.x] = room[0];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  for (int k = 0; k < count; k++) {
    double sum = 0.0;
    for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x)
      sum += ((volatile double*)parts)[k * gridDim.x + b];
    room[threadIdx.x] = sum;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
      if (threadIdx.x < step) room[threadIdx.x] += room[threadIdx.x + step];
      __syncthreads();
    }
    sums[k] = room[0];
    __syncthreads();
  }
  if (threadIdx.x == 0) *ticket = 0u;
  return true;
}

// Selection: the value at a rank, eleven bits at a time.

// Bits that ascend with the numbers.
__device__ __forceinline__ bits ascending(double x) {
  const bits b = (bits)__double_as_longlong(x);
  return b >> 63 ? ~b : b | 0x8000000000000000ull;
}

struct selection {
  bits prefix, rank;
  double value;
};

// Pass `number` of six counts the numbers that share the bits found so far by their next ones.
extern "C" __global__ void select_pass(const double* x, integer n, integer number, integer rank,
                                       selection* found, unsigned* counts, unsigned* ticket) {
  __shared__ unsigned own[2048];
  __shared__ bool last;
  const int shift = number < 5 ? 53 - 11 * (int)number : 0, width = number < 5 ? 11 : 9;
  const bits known = number == 0 ? 0 : found->prefix >> (shift + width);
  for (int b = threadIdx.x; b < 2048; b += blockDim.x) own[b] = 0u;
  __syncthreads();
  for (integer i = blockIdx.x * (integer)blockDim.x + threadIdx.x; i < n;
       i += (integer)gridDim.x * blockDim.x) {
    const bits b = ascending(x[i]);
    if (number == 0 || b >> (shift + width) == known)
      atomicAdd(&own[(b >> shift) & ((1u << width) - 1u)], 1u);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < 2048; b += blockDim.x)
    if (own[b]) atomicAdd(&counts[b], own[b]);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int b = threadIdx.x; b < 2048; b += blockDim.x) {
    own[b] = ((volatile unsigned*)counts)[b];
    counts[b] = 0u;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    bits left = number == 0 ? (bits)rank : found->rank;
    int b = 0;
    while (left >= own[b]) left -= own[b++];
    found->rank = left;
    found->prefix = (number == 0 ? 0 : found->prefix) | (bits)b << shift;
    const bits prefix = found->prefix;
    found->value = __longlong_as_double(
        (integer)(prefix >> 63 ? prefix & 0x7fffffffffffffffull : ~prefix));
    *ticket = 0u;
  }
}

// Two levels: q = clip(x - reference - tau, low, high) with a given sum, of equal weights where no
// others are given.

struct threshold {
  double tau, below, above, span;
  integer trials, done, inside;
};

extern "C" __global__ void begin_threshold(threshold* at, double low, double high, integer warm) {
  const double slack = 0.01 * (high - low);
  const double before = at->tau;
  at->below = -high - slack;
  at->above = -low + slack;
  const bool inside = warm && before > at->below && before < at->above;
  at->tau = inside ? before : 0.5 * (at->below + at->above);
  at->span = at->above - at->below;
  at->trials = at->done = at->inside = 0;
}

// One trial: a Newton step inside a bracket, which is halved where three trials did not.
extern "C" __global__ void try_threshold(const double* x, const double* weight, integer n,
                                         double low, double high, double total,
                                         const selection* edge, threshold* at, double* parts,
                                         unsigned* ticket) {
  if (at->done) return;
  const double reference = edge->value, tau = at->tau;
  double sums[4] = {0.0, 0.0, 0.0, 0.0};
  for (integer i = blockIdx.x * (integer)blockDim.x + threadIdx.x; i < n;
       i += (integer)gridDim.x * blockDim.x) {
    const double distance = x[i] - reference, q = distance - tau;
    const double own = weight ? weight[i] : 1.0;
    if (q <= low) {
      sums[0] += own;
    } else if (q >= high) {
      sums[1] += own;
    } else {
      sums[2] += own;
      sums[3] += own * distance;
    }
  }
  if (!add_up(sums, 4, parts, ticket) || threadIdx.x != 0) return;
  const double free = sums[2], moment = sums[3];
  const double fixed = low * sums[0] + (high * sums[1] - total);
  const double excess = (moment - free * tau) + fixed;
  const double noise = 4.4408920985006262e-16 * (fabs(moment) + fabs(free * tau) + total);
  const double middle = 0.5 * (at->below + at->above);
  const bool exhausted = !(at->below < middle && middle < at->above);
  if (exhausted || fabs(excess) <= noise) {
    if (free > 0.0) at->tau = (moment + fixed) / free;
    at->done = 1;
    return;
  }
  if (excess > 0.0)
    at->below = fmax(at->below, tau);
  else
    at->above = fmin(at->above, tau);
  const double width = at->above - at->below;
  const bool third = at->trials % 3 == 2, slow = third && width > 0.5 * at->span;
  if (third) at->span = width;
  double goal = tau + (free > 0.0 ? excess / free : 0.0);
  if (slow || !(at->below < goal && goal < at->above)) goal = 0.5 * (at->below + at->above);
  at->tau = goal;
  at->trials += 1;
}

// Writes q over x and the block of the samples between the levels, and counts these.
extern "C" __global__ void fill_threshold(double* x, integer n, double low, double high,
                                          const selection* edge, threshold* at, int* block) {
  if (!at->done) return;
  const double reference = edge->value, tau = at->tau;
  integer inside = 0;
  for (integer i = blockIdx.x * (integer)blockDim.x + threadIdx.x; i < n;
       i += (integer)gridDim.x * blockDim.x) {
    const double q = (x[i] - reference) - tau;
    const bool between = low < q && q < high;
    inside += between;
    x[i] = fmin(fmax(q, low), high);
    block[i] = between ? 0 : -1;
  }
  if (inside) atomicAdd((bits*)&at->inside, (bits)inside);
}

// Beside the edge: sum and weight of the losses below, the same above, and what q falls short.
extern "C" __global__ void level_sums(const double* x, const double* weight, const double* q,
                                      integer n, double low, double high, const selection* edge,
                                      double* parts, unsigned* ticket, double* out) {
  const double reference = edge->value;
  double sums[5] = {0.0, 0.0, 0.0, 0.0, 0.0};
  for (integer i = blockIdx.x * (integer)blockDim.x + threadIdx.x; i < n;
       i += (integer)gridDim.x * blockDim.x) {
    const double distance = x[i] - reference, own = weight ? weight[i] : 1.0;
    if (distance < 0.0) {
      sums[0] += own * x[i];
      sums[1] += own;
    } else if (distance > 0.0) {
      sums[2] += own * x[i];
      sums[3] += own;
    }
    if (q) sums[4] += own * fmax(((distance > 0.0 ? high : low) - q[i]) * distance, 0.0);
  }
  if (add_up(sums, 5, parts, ticket) && threadIdx.x == 0) {
    for (int k = 0; k < 5; k++) out[k] = sums[k];
    out[5] = reference;
  }
}

// Running sums over the threads of a block, in place.
__device__ void add_before(twofold* room) {
  __syncthreads();
  for (int step = 1; step < blockDim.x; step *= 2) {
    const twofold other = threadIdx.x >= step ? room[threadIdx.x - step] : twofold{0.0, 0.0};
    __syncthreads();
    room[threadIdx.x] = plus(room[threadIdx.x], other);
    __syncthreads();
  }
}

// Any spectrum: the isotonic fit of sorted keys less masses is the convex minorant of the
// points (k, P_k), P_k the sum of the first k differences.

// The sum of the differences before each run of `length` of them, inside a block of threads, and
// the sum of all runs of the block: one thread a run.
extern "C" __global__ void run_totals(const double* key, const double* mass, integer n,
                                      integer length, twofold* before, twofold* totals) {
  __shared__ twofold room[64];
  const integer run = blockIdx.x * (integer)blockDim.x + threadIdx.x;
  const integer start = min(n, run * length), stop = min(n, start + length);
  twofold sum = {0.0, 0.0};
  for (integer i = start; i < stop; i++) sum = plus(plus(sum, key[i]), -mass[i]);
  room[threadIdx.x] = sum;
  add_before(room);
  if (run * length <= n) before[run] = threadIdx.x > 0 ? room[threadIdx.x - 1] : twofold{0.0, 0.0};
  if (threadIdx.x == blockDim.x - 1) totals[blockIdx.x] = room[threadIdx.x];
}

// From totals of blocks to the sum before each of them, in place; one block of threads.
extern "C" __global__ void before_blocks(twofold* totals, integer blocks) {
  __shared__ twofold room[1024];
  const integer share = (blocks + blockDim.x - 1) / blockDim.x;
  const integer start = min(blocks, share * threadIdx.x), stop = min(blocks, start + share);
  twofold sum = {0.0, 0.0};
  for (integer b = start; b < stop; b++) sum = plus(sum, totals[b]);
  room[threadIdx.x] = sum;
  add_before(room);
  sum = threadIdx.x > 0 ? room[threadIdx.x - 1] : twofold{0.0, 0.0};
  for (integer b = start; b < stop; b++) {
    const twofold own = totals[b];
    totals[b] = sum;
    sum = plus(sum, own);
  }
}

// Whether point b lies strictly above the line from a to c.
__device__ __forceinline__ bool bulges(integer a, twofold pa, integer b, twofold pb, integer c,
                                       twofold pc) {
  return above(times(minus(pb, pa), (double)(c - b)), times(minus(pc, pb), (double)(b - a)));
}

// Prefix sums, and the minorant of the points of each run, by a stack: one thread a run.
extern "C" __global__ void run_minorants(const double* key, const double* mass, integer n,
                                         integer length, const twofold* before,
                                         const twofold* blocks, twofold* sums, int* vertex,
                                         int* counts) {
  const integer run = blockIdx.x * (integer)blockDim.x + threadIdx.x;
  const integer start = run * length, stop = min(n + 1, start + length);
  if (start > n) return;
  int* stack = vertex + start;
  int height = 0;
  twofold sum = plus(before[run], blocks[blockIdx.x]), top = sum, second = sum;
  for (integer k = start; k < stop; k++) {
    sums[k] = sum;
    while (height >= 2 && bulges(stack[height - 2], second, stack[height - 1], top, k, sum)) {
      height--;
      top = second;
      if (height >= 2) second = sums[stack[height - 2]];
    }
    stack[height++] = (int)k;
    second = top;
    top = sum;
    if (k < n) sum = plus(plus(sum, key[k]), -mass[k]);
  }
  counts[run] = height;
}

// Whether the line from a to b passes strictly above c, to the right of both or between them.
__device__ __forceinline__ bool passes_above(integer a, twofold pa, integer b, twofold pb,
                                             integer c, twofold pc) {
  return above(times(minus(pb, pa), (double)(c - a)), times(minus(pc, pa), (double)(b - a)));
}

// Where the tangent from point a touches the vertices of a minorant to its right.
__device__ integer touched(integer a, const int* right, integer count, const twofold* sums) {
  const twofold pa = sums[a];
  integer low = 0, high = count - 1;
  while (low < high) {
    const integer j = (low + high) / 2;
    const integer b = right[j], c = right[j + 1];
    if (passes_above(a, pa, b, sums[b], c, sums[c]))
      low = j + 1;
    else
      high = j;
  }
  return low;
}

// The common tangent of two neighbouring minorants, one block of threads for each pair: the last
// vertex of the left one and the first of the right one that stay.
extern "C" __global__ void tangents(const twofold* sums, const int* vertex, const int* counts,
                                    integer points, integer run_bits, integer span_bits,
                                    int* cuts) {
  const integer start = (integer)blockIdx.x << (span_bits + 1);
  const integer middle = start + (1ll << span_bits);
  const integer n_left = counts[start >> run_bits];
  if (middle >= points) {
    if (threadIdx.x == 0) cuts[2 * blockIdx.x] = (int)n_left - 1, cuts[2 * blockIdx.x + 1] = 0;
    return;
  }
  const int *left = vertex + start, *right = vertex + middle;
  const integer n_right = counts[middle >> run_bits];
  integer low = 0, high = n_left - 1;
  // Most pairs stay as they are where little is pooled.
  const integer a = left[high], b = right[0];
  const bool kept_left =
      n_left < 2 || !bulges(left[high - 1], sums[left[high - 1]], a, sums[a], b, sums[b]);
  const bool kept_right = n_right < 2 || !bulges(a, sums[a], b, sums[b], right[1], sums[right[1]]);
  if (kept_left && kept_right) low = high;
  while (low < high) {
    const integer width = high - low, parts = blockDim.x + 1;
    const integer i = low + (threadIdx.x + 1) * width / parts;
    const integer here = left[i], next = left[i + 1];
    const integer other = right[touched(here, right, n_right, sums)];
    const bool further = passes_above(here, sums[here], other, sums[other], next, sums[next]);
    const integer count = __syncthreads_count(further);
    const integer first = low;
    if (count > 0) low = first + count * width / parts + 1;
    if (count < blockDim.x) high = first + (count + 1) * width / parts;
  }
  if (threadIdx.x == 0) {
    cuts[2 * blockIdx.x] = (int)low;
    cuts[2 * blockIdx.x + 1] = (int)touched(left[low], right, n_right, sums);
  }
}

// Joins the vertices that stay.
extern "C" __global__ void join(const int* vertex, const int* counts, const int* cuts,
                                integer points, integer run_bits, integer span_bits, int* joined,
                                int* new_counts) {
  const integer p = blockIdx.x * (integer)blockDim.x + threadIdx.x;
  if (p >= points) return;
  const integer pair = p >> (span_bits + 1), start = pair << (span_bits + 1);
  const integer middle = start + (1ll << span_bits);
  const integer kept = cuts[2 * pair] + 1, skipped = cuts[2 * pair + 1], place = p - start;
  const integer n_right = middle < points ? counts[middle >> run_bits] - skipped : 0;
  if (place == 0) new_counts[start >> run_bits] = (int)(kept + n_right);
  if (place < kept)
    joined[p] = vertex[p];
  else if (place < kept + n_right)
    joined[p] = vertex[middle + skipped + (place - kept)];
}

// q and the number of its block for every rank, put where the sample is. `nearby` has the block of
// the first rank of each run; `number` is -1 for a block of one.
extern "C" __global__ void write_pooled(const double* key, const double* mass,
                                        const integer* order, integer n, integer run_bits,
                                        const twofold* sums, const int* vertex,
                                        integer n_vertices, const int* number, const int* nearby,
                                        double* out, int* block) {
  const integer rank = blockIdx.x * (integer)blockDim.x + threadIdx.x;
  if (rank >= n) return;
  const integer run = rank >> run_bits;
  integer low = nearby[run];
  integer high = (run + 1) << run_bits < n ? nearby[run + 1] : n_vertices - 2;
  while (low < high) {
    const integer b = (low + high + 1) / 2;
    if (vertex[b] <= rank)
      low = b;
    else
      high = b - 1;
  }
  const integer first = vertex[low], last = vertex[low + 1], place = order[rank];
  block[place] = number[low];
  if (last == first + 1) {
    out[place] = mass[rank];
    return;
  }
  // Relative to the first key of the block: q there, and the distance from it.
  const double size = (double)(last - first), reference = key[first];
  const twofold fit = minus(minus(sums[last], sums[first]), times(twofold{reference, 0.0}, size));
  const double q = (key[rank] - reference) - fit.hi / size;
  out[place] = fmin(fmax(q, mass[first]), mass[last - 1]);
}

// What q, in the order of the losses, holds below each gap between them beyond the masses, times
// the width of the gap: a sum for each run.
extern "C" __global__ void run_shortfalls(const double* q, const double* mass, const double* key,
                                          integer n, integer length, const twofold* before,
                                          const twofold* blocks, double* out) {
  const integer run = blockIdx.x * (integer)blockDim.x + threadIdx.x;
  const integer start = run * length, stop = min(n, start + length);
  if (start >= n) return;
  twofold surplus = plus(before[run], blocks[blockIdx.x]);
  double total = 0.0;
  for (integer i = start; i < stop; i++) {
    surplus = plus(plus(surplus, q[i]), -mass[i]);
    if (i < n - 1)
      total += fmax(surplus.hi, 0.0) * (key[i + 1] - key[i]);
    else
      // What rounding has taken from the total weight is missing at the largest loss.
      total += fmax(-surplus.hi * key[i], 0.0);
  }
  out[run] = total;
}
