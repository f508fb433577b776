#include "latent_heads.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "compute/layout.h"

namespace moeinf {
namespace {

constexpr std::int64_t kBlockRows = 128;  // attended to at once: the second-level cache holds them

std::size_t float_bytes(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

// Room for the rows of a block where these are kept quantised: as floats one by one, and as they are
// multiplied.
std::int64_t widened_floats(const LatentShape& s, Format kept) {
  const Format multiplied = multiplied_format(kept);
  if (kept == multiplied) return 0;
  return round_up(s.width(), 16) +
         static_cast<std::int64_t>(row_bytes(multiplied, kBlockRows * s.width()) / 4);
}

// Whether an instruction set that has loops of its own for shared rows takes these.
bool fits_shared(const LatentShape& s, Format kept) {
  return multiplied_format(kept) == Format::kBF16 && s.width() % 32 == 0 && s.rank % 64 == 0;
}

}  // namespace

LatentHeads::Vectors LatentHeads::take_vectors(Workspace::Frame& memory, const LatentShape& s,
                                               const Sizes& sizes, int num_threads) {
  const auto queries = static_cast<std::size_t>(sizes.queries);
  Vectors v;
  v.queries = static_cast<unsigned char*>(memory.take_bytes(queries * sizes.query_bytes));
  v.mixtures = static_cast<unsigned char*>(memory.take_bytes(queries * sizes.mixture_bytes));
  v.sums = memory.take<float>(sizes.kept_sums * s.rank);
  v.states = memory.take<SoftmaxState>(sizes.kept_sums);
  v.threads = memory.take<float>(sizes.thread_floats * num_threads);
  return v;
}

// What a thread attends in: scores and widened rows, or the scratch memory of those loops.
std::int64_t LatentHeads::attending_floats(const LatentShape& s, Format kept) {
  const auto shared =
      static_cast<std::int64_t>(shared_rows_bytes(s.width(), s.rank, false, kBlockQueries) / sizeof(float));
  const std::int64_t apart = kBlockQueries * kBlockRows + widened_floats(s, kept);
  return round_up(fits_shared(s, kept) ? std::max(apart, shared) : apart, 16);
}

// What a thread holds: first a head's queries in the latents' space, later what it attends in, and more.
std::int64_t LatentHeads::floats_of_thread(const LatentShape& s, Format kept, std::int64_t tokens,
                                           std::int64_t more_floats) {
  return round_up(std::max(tokens * s.width(), attending_floats(s, kept) + more_floats), 16);
}

LatentHeads::LatentHeads(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values, Format kept,
                         const LatentQueries& queries, std::int64_t kept_runs, std::int64_t more_floats)
    : kernels_(kernels),
      s_(shape),
      keys_values_(keys_values),
      kept_(kept),
      format_(multiplied_format(kept)),
      queries_(queries),
      kept_runs_(kept_runs),
      query_kind_(activation_of(format_)),
      mixture_kind_(kernels.activation_of(keys_values.format, queries.tokens)),
      sizes_{queries.count(), queries.count() * kept_runs, activation_bytes(query_kind_, shape.width()),
             activation_bytes(mixture_kind_, shape.rank),
             floats_of_thread(shape, kept, queries.tokens, more_floats)},
      memory_(kernels.workspace()),
      v_(take_vectors(memory_, shape, sizes_, kernels.pool().num_threads())) {
  kernels.reserve_thread_scratch(std::max(s_.width(), s_.rank));
}

std::size_t LatentHeads::workspace_bytes(const LatentShape& s, const PassShape& pass, std::int64_t tokens,
                                         std::int64_t count, std::int64_t kept_sums,
                                         std::int64_t more_floats) {
  const Sizes sizes = {count, kept_sums,
                       activation_bytes(activation_of(multiplied_format(pass.kept)), s.width()),
                       prepared_bytes(pass, 1, s.rank), floats_of_thread(s, pass.kept, tokens, more_floats)};
  Workspace::Frame memory;
  take_vectors(memory, s, sizes, pass.num_threads);
  return memory.num_bytes();
}

Matrix LatentHeads::head_matrix(std::int64_t head, std::int64_t first, std::int64_t count) const {
  const std::int64_t row = (queries_.first_head + head) * (s_.qk_nope_head_dim + s_.value_dim) + first;
  return {keys_values_.row(row), keys_values_.format, count, s_.rank};
}

void LatentHeads::take_in(RowSpan<const float> queries, const Turns& turns) {
  kernels_.pool().run(queries_.num_heads,
                      [&](std::int64_t head, int thread) { take_in(head, queries, turns, thread); });
}

void LatentHeads::take_in(std::int64_t head, RowSpan<const float> queries, const Turns& turns, int thread) {
  const Ops& ops = kernels_.ops();
  const std::int64_t stride = queries.cols, width = s_.width(), pairs = s_.rotary_pairs;
  const float* const from = queries.data + (queries_.first_head + head) * s_.query_dim();
  float* const inside = of_thread(thread);
  std::fill(inside, inside + queries_.tokens * width, 0.0f);
  ops.weighted_sum(head_matrix(head, 0, s_.qk_nope_head_dim), 0, s_.rank, from, stride, queries_.tokens,
                   inside, width);
  for (std::int64_t t = 0; t < queries_.tokens; ++t) {
    float* const query = inside + t * width;
    std::memcpy(query + s_.rank, from + t * stride + s_.qk_nope_head_dim, float_bytes(2 * pairs));
    ops.rotate(query + s_.rank, turns.cos.row(t), turns.sin.row(t), pairs, s_.pairs);
    for (std::int64_t c = 0; c < width; ++c) query[c] *= s_.scale;
    ops.prepare(query_kind_, query, width,
                v_.queries + static_cast<std::size_t>(queries_.number(head, t)) * sizes_.query_bytes);
  }
}

void LatentHeads::begin(std::int64_t first, std::int64_t count, bool first_run, SoftmaxState* states) const {
  std::fill_n(states, count, SoftmaxState{-std::numeric_limits<float>::infinity(), 0.0f});
  if (s_.sinks == nullptr || !first_run) return;
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t head = (first + p) / queries_.of_head % queries_.num_heads;
    states[p] = {s_.sinks[queries_.first_head + head], 1.0f};
  }
}

void LatentHeads::attend(std::int64_t first, std::int64_t count, const LatentRun& run, SoftmaxState* states,
                         float* sums, int thread) {
  if (s_.window == 0 && kernels_.ops().attend_shared != nullptr && fits_shared(s_, kept_))
    return attend_shared(first, count, run, states, sums, thread);
  std::fill(sums, sums + count * s_.rank, 0.0f);
  const std::int64_t begin = *std::min_element(run.before, run.before + count);
  for (std::int64_t start = 0; start < run.count; start += kBlockRows) {
    if (start + kBlockRows <= begin) continue;  // blocks begin at the same rows for every query
    attend_rows(first, count, run, start, states, sums, thread);
  }
}

void LatentHeads::attend_shared(std::int64_t first, std::int64_t count, const LatentRun& run,
                                SoftmaxState* states, float* sums, int thread) {
  SharedRowsTask task;
  task.queries = v_.queries + static_cast<std::size_t>(first) * sizes_.query_bytes;
  task.query_bytes = static_cast<std::int64_t>(sizes_.query_bytes);
  task.num_queries = static_cast<int>(count);
  task.rows = run.rows.data;
  task.format = run.rows.format;
  task.num_rows = std::max<std::int64_t>(0, run.count);
  task.width = s_.width();
  task.rank = s_.rank;
  task.seen = run.seen;
  task.scratch = of_thread(thread);
  kernels_.ops().attend_shared(task, states, sums);
}

// Rows as they are multiplied.
const unsigned char* LatentHeads::rows_from(const LatentRows& rows, std::int64_t start, std::int64_t count,
                                            int thread) const {
  const Ops& ops = kernels_.ops();
  const std::size_t bytes = row_bytes(rows.format, s_.width());
  const unsigned char* const kept = rows.data + static_cast<std::size_t>(start) * bytes;
  if (format_ == rows.format) return kept;
  float* const floats = of_thread(thread) + kBlockQueries * kBlockRows;
  auto* const out = reinterpret_cast<unsigned char*>(floats + round_up(s_.width(), 16));
  for (std::int64_t r = 0; r < count; ++r) {
    ops.widen_kv(rows.format, kept + static_cast<std::size_t>(r) * bytes, s_.width(), floats);
    ops.store_kv(format_, floats, s_.width(), out + row_bytes(format_, r * s_.width()));
  }
  return out;
}

void LatentHeads::attend_rows(std::int64_t first, std::int64_t count, const LatentRun& run,
                              std::int64_t start, SoftmaxState* states, float* sums, int thread) {
  const Ops& ops = kernels_.ops();
  const std::int64_t num_rows = std::min(kBlockRows, run.count - start);
  const Matrix rows = {rows_from(run.rows, start, num_rows, thread), format_, num_rows, s_.width()};
  float* const scores = of_thread(thread);
  ops.matmul_rows(rows, 0, num_rows, v_.queries + static_cast<std::size_t>(first) * sizes_.query_bytes, count,
                  nullptr, scores, kBlockRows);  // nothing is expanded
  for (std::int64_t p = 0; p < count; ++p) {
    float* const of_query = scores + p * kBlockRows;
    const std::int64_t seen = std::clamp<std::int64_t>(run.seen[p] - start, 0, num_rows);
    const std::int64_t before = std::clamp<std::int64_t>(run.before[p] - start, 0, seen);
    std::fill(of_query, of_query + before, 0.0f);
    ops.online_softmax(of_query + before, seen - before, states[p], sums + p * s_.rank, s_.rank);
    std::fill(of_query + seen, of_query + num_rows, 0.0f);
  }
  ops.weighted_sum(rows, 0, s_.rank, scores, kBlockRows, count, sums, s_.rank);
}

void LatentHeads::fold(std::int64_t first, std::int64_t count, const SoftmaxState* states,
                       const float* sums) {
  for (std::int64_t p = 0; p < count; ++p) {
    fold_run(kernels_.ops(), states[p], sums + p * s_.rank, s_.rank, *states_of(0, first + p),
             sums_of(0, first + p));
  }
}

void LatentHeads::take_out(RowSpan<float> out) {
  kernels_.pool().run(queries_.num_heads,
                      [&](std::int64_t head, int thread) { take_out(head, out, thread); });
}

// A head's mixtures of latents into its values.
void LatentHeads::take_out(std::int64_t head, RowSpan<float> out, int thread) {
  const Ops& ops = kernels_.ops();
  const std::int64_t tokens = queries_.tokens;
  const float* mixtures[kTokensAtOnce];
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t query = queries_.number(head, t);
    SoftmaxState& state = *states_of(0, query);
    float* const mixture = sums_of(0, query);
    mixtures[t] = mixture;
    for (std::int64_t run = 1; run < kept_runs_; ++run)
      fold_run(ops, *states_of(run, query), sums_of(run, query), s_.rank, state, mixture);
    for (std::int64_t c = 0; c < s_.rank; ++c) mixture[c] /= state.total;
  }
  unsigned char* const prepared =
      v_.mixtures + static_cast<std::size_t>(head * tokens) * sizes_.mixture_bytes;
  kernels_.prepare_rows(mixture_kind_, mixtures, tokens, s_.rank, prepared);
  kernels_.multiply(head_matrix(head, s_.qk_nope_head_dim, s_.value_dim), 0, s_.value_dim, mixture_kind_,
                    prepared, tokens, thread, out.data + (queries_.first_head + head) * s_.value_dim,
                    out.cols);
}

}  // namespace moeinf
