// Loops of gated DeltaNet. Every column of a head's state is a recurrence of its own, so a few vectors of
// columns go through all tokens together. For each token they are read and written once: what of them the
// next token will find under its key is summed on the way.
#pragma once

// The first `count` columns of a vector, or all of them.
template <bool kWhole>
ALWAYS_INLINE F32 load_columns(const float* p, std::int64_t count) {
  return kWhole ? load(p) : load_f32_part(reinterpret_cast<const unsigned char*>(p), count);
}
template <bool kWhole>
ALWAYS_INLINE void store_columns(F32 v, float* p, std::int64_t count) {
  __builtin_memcpy(p, &v, kWhole ? sizeof v : static_cast<std::size_t>(count) * sizeof(float));
}

// One token: S = a S + k c^T with the corrections c = b (v - a S^T k), then out = S^T q. `found` is S^T k
// and, if kNext, becomes that of the next token. Of each of the P vectors of columns the first `count` are
// there.
template <int P, bool kWhole, bool kNext>
ALWAYS_INLINE void run_token(const DeltaTask& task, std::int64_t t, const float* from, std::int64_t first,
                             std::int64_t count, F32 (&found)[P]) {
  const float* const key = task.keys + t * task.stride;
  const float* const query = task.queries + t * task.stride;
  const float* const value = task.values + t * task.stride + first;
  const std::int64_t dim = task.value_dim, stride = task.stride,
                     key_dim = task.key_dim;  // no store changes these
  float* const out = task.out + t * dim + first;
  float* const to = task.new_state + first;
  const F32 decay = broadcast(task.decays[t]), less = broadcast(-task.decays[t]),
            rate = broadcast(task.rates[t]);
  F32 corrections[P], sums[P];
  UNROLL for (int p = 0; p < P; ++p) {
    corrections[p] = mul(rate, fma(less, found[p], load_columns<kWhole>(value + p * kLanes, count)));
    sums[p] = found[p] = zero();
  }
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const F32 k = broadcast(key[i]), q = broadcast(query[i]);
    const F32 next = kNext ? broadcast(key[stride + i]) : zero();
    UNROLL for (int p = 0; p < P; ++p) {
      const std::int64_t at = i * dim + p * kLanes;
      const F32 s = fma(k, corrections[p], mul(decay, load_columns<kWhole>(from + at, count)));
      store_columns<kWhole>(s, to + at, count);
      sums[p] = fma(q, s, sums[p]);
      if (kNext) found[p] = fma(next, s, found[p]);
    }
  }
  UNROLL for (int p = 0; p < P; ++p) store_columns<kWhole>(sums[p], out + p * kLanes, count);
}

template <int P, bool kWhole>
void run_columns(const DeltaTask& task, std::int64_t first, std::int64_t count) {
  const float* from = task.state + first;
  F32 found[P];
  UNROLL for (int p = 0; p < P; ++p) found[p] = zero();
  for (std::int64_t i = 0; i < task.key_dim; ++i) {
    const F32 k = broadcast(task.keys[i]);
    UNROLL for (int p = 0; p < P; ++p) {
      const std::int64_t at = i * task.value_dim + p * kLanes;
      found[p] = fma(k, load_columns<kWhole>(from + at, count), found[p]);
    }
  }
  const std::int64_t last = task.tokens - 1;
  for (std::int64_t t = 0; t < last; ++t) {
    run_token<P, kWhole, true>(task, t, from, first, count, found);
    from = task.new_state + first;
  }
  run_token<P, kWhole, false>(task, last, from, first, count, found);
}

void run_delta(const DeltaTask& task) {
  constexpr int kVectors = 8;  // of sums, and as many of what is found
  const std::int64_t dim = task.value_dim;
  std::int64_t first = 0;
  for (; first + kVectors * kLanes <= dim; first += kVectors * kLanes) {
    run_columns<kVectors, true>(task, first, kLanes);
  }
  for (; first + kLanes <= dim; first += kLanes) run_columns<1, true>(task, first, kLanes);
  if (first < dim) run_columns<1, false>(task, first, dim - first);
}
