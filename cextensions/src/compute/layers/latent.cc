#include "moeinf/compute/layers/latent.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "compute/layout.h"
#include "runs.h"

namespace moeinf {
namespace {

constexpr std::int64_t kQueriesAtOnce = 2048;  // bounds the memory of the vectors below
constexpr std::int64_t kTokensAtOnce = 128;    // likewise, of a thread
constexpr std::int64_t kBlockQueries = 32;     // that attend together: rows are read once for all
constexpr std::int64_t kBlockRows = 128;       // attended to at once: the second-level cache holds them

std::size_t float_bytes(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

// How much there is of what a pass holds.
struct Sizes {
  std::int64_t queries;                    // a query is one of a token and a head
  std::int64_t kept_sums;                  // of queries and of the runs whose sums exist side by side
  std::size_t query_bytes, mixture_bytes;  // of one, as it is multiplied
  std::int64_t thread_floats;              // a multiple of a cache line's
};

struct Vectors {
  unsigned char *queries, *mixtures;
  float* sums;           // [kept runs, queries, rank]
  SoftmaxState* states;  // [kept runs, queries]
  float* threads;
};

Vectors take_vectors(Workspace::Frame& memory, const LatentShape& s, const Sizes& sizes, int num_threads) {
  const auto queries = static_cast<std::size_t>(sizes.queries);
  Vectors v;
  v.queries = static_cast<unsigned char*>(memory.take_bytes(queries * sizes.query_bytes));
  v.mixtures = static_cast<unsigned char*>(memory.take_bytes(queries * sizes.mixture_bytes));
  v.sums = memory.take<float>(sizes.kept_sums * s.rank);
  v.states = memory.take<SoftmaxState>(sizes.kept_sums);
  v.threads = memory.take<float>(sizes.thread_floats * num_threads);
  return v;
}

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

// What a thread attends in: scores and widened rows, or the scratch memory of those loops.
std::int64_t attending_floats(const LatentShape& s, Format kept) {
  const auto shared =
      static_cast<std::int64_t>(shared_rows_bytes(s.width(), s.rank, false, kBlockQueries) / sizeof(float));
  const std::int64_t apart = kBlockQueries * kBlockRows + widened_floats(s, kept);
  return round_up(fits_shared(s, kept) ? std::max(apart, shared) : apart, 16);
}

// Whether the sums of all runs exist side by side, or each is folded into those before it.
enum class RunSums { kSideBySide, kFolded };

// What a thread holds: first a head's queries in the latents' space, later what it attends in, and behind
// that a run's sums where runs are folded one by one.
std::int64_t floats_of_thread(const LatentShape& s, Format kept, std::int64_t tokens, RunSums sums) {
  const std::int64_t attending =
      attending_floats(s, kept) + (sums == RunSums::kFolded ? kBlockQueries * s.rank : 0);
  return round_up(std::max(tokens * s.width(), attending), 16);
}

// Some heads of some tokens whose runs are equally long. The query of a token and a head has the number
// `head * tokens + token`, heads counted from first_head on. Each query attends to runs of rows. Where there
// are few queries each run is a task, and the runs are put together in the end; else one task goes from run
// to run. Both come to the same, bit for bit.
class HeadsOfTokens {
 public:
  HeadsOfTokens(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values,
                const LatentRows& cache, std::int64_t length, std::int64_t tokens, std::int64_t first_head,
                std::int64_t num_heads)
      : kernels_(kernels),
        s_(shape),
        keys_values_(keys_values),
        cache_(cache),
        length_(length),
        tokens_(tokens),
        first_head_(first_head),
        num_heads_(num_heads),
        num_queries_(num_heads * tokens),
        num_blocks_((num_queries_ + kBlockQueries - 1) / kBlockQueries),
        run_rows_(run_positions(length + 1)),
        num_runs_((length + tokens + run_rows_ - 1) / run_rows_),
        kept_runs_(num_queries_ * num_runs_ <= kQueriesAtOnce ? num_runs_ : 1),
        format_(multiplied_format(cache.format)),
        query_kind_(activation_of(format_)),
        mixture_kind_(kernels.activation_of(keys_values.format, tokens)),
        query_bytes_(activation_bytes(query_kind_, shape.width())),
        mixture_bytes_(activation_bytes(mixture_kind_, shape.rank)),
        memory_(kernels.workspace()) {
    sizes_ = {num_queries_, num_queries_ * kept_runs_, query_bytes_, mixture_bytes_,
              floats_of_thread(shape, cache.format, tokens,
                               kept_runs_ < num_runs_ ? RunSums::kFolded : RunSums::kSideBySide)};
    v_ = take_vectors(memory_, shape, sizes_, kernels.pool().num_threads());
    kernels.reserve_thread_scratch(std::max(s_.width(), s_.rank));
  }

  void run(RowSpan<const float> queries, const Turns& turns, RowSpan<float> out) {
    Pool& pool = kernels_.pool();
    pool.run(num_heads_, [&](std::int64_t head, int thread) { take_in(head, queries, turns, thread); });
    pool.run(num_blocks_ * kept_runs_, [&](std::int64_t task, int thread) {
      const std::int64_t block = task % num_blocks_, run = task / num_blocks_;
      attend_run(block, run, states_of(run, block), sums_of(run, block * kBlockQueries), thread);
      if (kept_runs_ < num_runs_) attend_further(block, thread);
    });
    pool.run(num_heads_, [&](std::int64_t head, int thread) { take_out(head, out, thread); });
  }

 private:
  float* of_thread(int thread) const { return v_.threads + thread * sizes_.thread_floats; }
  float* sums_of(std::int64_t run, std::int64_t query) const {
    return v_.sums + (run * num_queries_ + query) * s_.rank;
  }
  SoftmaxState* states_of(std::int64_t run, std::int64_t block) const {
    return v_.states + run * num_queries_ + block * kBlockQueries;
  }
  std::int64_t queries_of(std::int64_t block) const {
    return std::min(kBlockQueries, num_queries_ - block * kBlockQueries);
  }
  Matrix head_matrix(std::int64_t head, std::int64_t first, std::int64_t count) const {
    const std::int64_t row = (first_head_ + head) * (s_.qk_nope_head_dim + s_.value_dim) + first;
    return {keys_values_.row(row), keys_values_.format, count, s_.rank};
  }
  // A query sees the rows from first_seen to rows_seen.
  std::int64_t rows_seen(std::int64_t query) const { return length_ + query % tokens_ + 1; }
  std::int64_t first_seen(std::int64_t query) const {
    return s_.window == 0 ? 0 : std::max<std::int64_t>(0, rows_seen(query) - s_.window);
  }

  // A head's queries into the latents' space.
  void take_in(std::int64_t head, RowSpan<const float> queries, const Turns& turns, int thread) {
    const Ops& ops = kernels_.ops();
    const std::int64_t stride = queries.cols, width = s_.width(), pairs = s_.rotary_pairs;
    const float* const from = queries.data + (first_head_ + head) * s_.query_dim();
    float* const inside = of_thread(thread);
    std::fill(inside, inside + tokens_ * width, 0.0f);
    ops.weighted_sum(head_matrix(head, 0, s_.qk_nope_head_dim), 0, s_.rank, from, stride, tokens_, inside,
                     width);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      float* const query = inside + t * width;
      std::memcpy(query + s_.rank, from + t * stride + s_.qk_nope_head_dim, float_bytes(2 * pairs));
      ops.rotate(query + s_.rank, turns.cos.row(t), turns.sin.row(t), pairs, s_.pairs);
      for (std::int64_t c = 0; c < width; ++c) query[c] *= s_.scale;
      ops.prepare(query_kind_, query, width,
                  v_.queries + static_cast<std::size_t>(head * tokens_ + t) * query_bytes_);
    }
  }

  // What a block of queries sees of a run of rows, which are read once for all of them: their states, and
  // sums [queries, rank].
  void attend_run(std::int64_t block, std::int64_t run, SoftmaxState* states, float* sums, int thread) {
    const std::int64_t first = block * kBlockQueries, queries = queries_of(block);
    std::int64_t end = 0, begin = length_ + tokens_;  // of the rows that some query sees
    for (std::int64_t p = 0; p < queries; ++p) {
      begin = std::min(begin, first_seen(first + p));
      end = std::max(end, rows_seen(first + p));
      states[p] = s_.sinks != nullptr && run == 0
                      ? SoftmaxState{s_.sinks[first_head_ + (first + p) / tokens_], 1.0f}
                      : SoftmaxState{-std::numeric_limits<float>::infinity(), 0.0f};
    }
    end = std::min(end, (run + 1) * run_rows_);
    if (s_.window == 0 && kernels_.ops().attend_shared != nullptr && fits_shared(s_, cache_.format))
      return attend_shared(first, queries, run * run_rows_, end, states, sums, thread);
    std::fill(sums, sums + queries * s_.rank, 0.0f);
    for (std::int64_t start = run * run_rows_; start < end; start += kBlockRows) {
      if (start + kBlockRows <= begin) continue;  // blocks begin at the same rows for every query
      attend_rows(first, queries, start, std::min(kBlockRows, end - start), states, sums, thread);
    }
  }

  void attend_shared(std::int64_t first, std::int64_t queries, std::int64_t start, std::int64_t end,
                     SoftmaxState* states, float* sums, int thread) {
    std::int64_t seen[kBlockQueries];
    for (std::int64_t p = 0; p < queries; ++p) seen[p] = rows_seen(first + p) - start;
    SharedRowsTask task;
    task.queries = v_.queries + static_cast<std::size_t>(first) * query_bytes_;
    task.query_bytes = static_cast<std::int64_t>(query_bytes_);
    task.num_queries = static_cast<int>(queries);
    task.rows = cache_.data + static_cast<std::size_t>(start) * row_bytes(cache_.format, s_.width());
    task.format = cache_.format;
    task.num_rows = std::max<std::int64_t>(0, end - start);
    task.width = s_.width();
    task.rank = s_.rank;
    task.seen = seen;
    task.scratch = of_thread(thread);
    kernels_.ops().attend_shared(task, states, sums);
  }

  // The runs of a block behind its first, one after the other.
  void attend_further(std::int64_t block, int thread) {
    SoftmaxState states[kBlockQueries];
    float* const sums = of_thread(thread) + attending_floats(s_, cache_.format);
    for (std::int64_t run = 1; run < num_runs_; ++run) {
      attend_run(block, run, states, sums, thread);
      for (std::int64_t p = 0; p < queries_of(block); ++p) {
        fold_run(kernels_.ops(), states[p], sums + p * s_.rank, s_.rank, states_of(0, block)[p],
                 sums_of(0, block * kBlockQueries + p));
      }
    }
  }

  // Rows of the cache as they are multiplied.
  const unsigned char* rows_from(std::int64_t start, std::int64_t count, int thread) const {
    const Ops& ops = kernels_.ops();
    const std::size_t bytes = row_bytes(cache_.format, s_.width());
    const unsigned char* const kept = cache_.data + static_cast<std::size_t>(start) * bytes;
    if (format_ == cache_.format) return kept;
    float* const floats = of_thread(thread) + kBlockQueries * kBlockRows;
    auto* const out = reinterpret_cast<unsigned char*>(floats + round_up(s_.width(), 16));
    for (std::int64_t r = 0; r < count; ++r) {
      ops.widen_kv(cache_.format, kept + static_cast<std::size_t>(r) * bytes, s_.width(), floats);
      ops.store_kv(format_, floats, s_.width(), out + row_bytes(format_, r * s_.width()));
    }
    return out;
  }

  void attend_rows(std::int64_t first, std::int64_t queries, std::int64_t start, std::int64_t count,
                   SoftmaxState* states, float* sums, int thread) {
    const Ops& ops = kernels_.ops();
    const Matrix rows = {rows_from(start, count, thread), format_, count, s_.width()};
    float* const scores = of_thread(thread);
    ops.matmul_rows(rows, 0, count, v_.queries + static_cast<std::size_t>(first) * query_bytes_, queries,
                    nullptr, scores, kBlockRows);  // nothing is expanded
    for (std::int64_t p = 0; p < queries; ++p) {
      float* const of_query = scores + p * kBlockRows;
      const std::int64_t seen = std::clamp<std::int64_t>(rows_seen(first + p) - start, 0, count);
      const std::int64_t before = std::clamp<std::int64_t>(first_seen(first + p) - start, 0, seen);
      std::fill(of_query, of_query + before, 0.0f);
      ops.online_softmax(of_query + before, seen - before, states[p], sums + p * s_.rank, s_.rank);
      std::fill(of_query + seen, of_query + count, 0.0f);
    }
    ops.weighted_sum(rows, 0, s_.rank, scores, kBlockRows, queries, sums, s_.rank);
  }

  // A head's mixtures of latents, put together from the runs, into its values.
  void take_out(std::int64_t head, RowSpan<float> out, int thread) {
    const Ops& ops = kernels_.ops();
    const float* mixtures[kTokensAtOnce];
    for (std::int64_t p = head * tokens_; p < (head + 1) * tokens_; ++p) {
      SoftmaxState& state = v_.states[p];
      float* const mixture = sums_of(0, p);
      mixtures[p - head * tokens_] = mixture;
      for (std::int64_t run = 1; run < kept_runs_; ++run)
        fold_run(ops, v_.states[run * num_queries_ + p], sums_of(run, p), s_.rank, state, mixture);
      for (std::int64_t c = 0; c < s_.rank; ++c) mixture[c] /= state.total;
    }
    unsigned char* const prepared = v_.mixtures + static_cast<std::size_t>(head * tokens_) * mixture_bytes_;
    kernels_.prepare_rows(mixture_kind_, mixtures, tokens_, s_.rank, prepared);
    kernels_.multiply(head_matrix(head, s_.qk_nope_head_dim, s_.value_dim), 0, s_.value_dim, mixture_kind_,
                      prepared, tokens_, thread, out.data + (first_head_ + head) * s_.value_dim, out.cols);
  }

  Kernels& kernels_;
  const LatentShape& s_;
  const Matrix& keys_values_;
  const LatentRows& cache_;
  std::int64_t length_, tokens_, first_head_, num_heads_, num_queries_, num_blocks_;
  std::int64_t run_rows_, num_runs_, kept_runs_;  // kept: whose sums exist side by side
  Format format_;                                 // of rows, as they are multiplied
  ActivationKind query_kind_, mixture_kind_;
  std::size_t query_bytes_, mixture_bytes_;
  Sizes sizes_;
  Workspace::Frame memory_;
  Vectors v_;
};

}  // namespace

void store_latents(Kernels& kernels, const LatentShape& s, const LatentRows& cache, std::int64_t length,
                   RowSpan<const float> rows, const Turns& turns) {
  const Ops& ops = kernels.ops();
  const std::size_t rank_bytes = row_bytes(cache.format, s.rank), bytes = row_bytes(cache.format, s.width());
  Workspace::Frame memory(kernels.workspace());
  auto* const end = memory.take<float>(2 * s.rotary_pairs);
  for (std::int64_t t = 0; t < rows.rows; ++t) {
    const float* const row = rows.row(t);
    unsigned char* const to = cache.data + static_cast<std::size_t>(length + t) * bytes;
    std::memcpy(end, row + s.rank, float_bytes(2 * s.rotary_pairs));
    ops.rotate(end, turns.cos.row(t), turns.sin.row(t), s.rotary_pairs, s.pairs);
    ops.store_kv(cache.format, row, s.rank, to);
    ops.store_kv(cache.format, end, 2 * s.rotary_pairs, to + rank_bytes);
  }
}

void attend_latents(Kernels& kernels, const LatentShape& s, const Matrix& keys_values,
                    const LatentRows& cache, std::int64_t length, RowSpan<const float> queries,
                    const Turns& turns, RowSpan<float> out) {
  const std::int64_t tokens = queries.rows;
  std::int64_t count;
  for (std::int64_t start = 0; start < tokens; start += count) {
    const std::int64_t same = kMostRuns * run_positions(length + start + 1) - (length + start);
    count = std::min({kTokensAtOnce, tokens - start, same});  // their runs are equally long
    const std::int64_t heads = std::max<std::int64_t>(1, kQueriesAtOnce / count);
    for (std::int64_t head = 0; head < s.num_heads; head += heads) {
      HeadsOfTokens(kernels, s, keys_values, cache, length + start, count, head,
                    std::min(heads, s.num_heads - head))
          .run(queries.part(start, count), turns.part(start, count), out.part(start, count));
    }
  }
}

std::size_t latent_workspace_bytes(const LatentShape& s, const PassShape& pass) {
  const std::int64_t tokens = std::min(pass.tokens, kTokensAtOnce);
  const std::int64_t queries = std::min(kQueriesAtOnce, s.num_heads * tokens);
  const std::int64_t runs = (pass.positions + kRunPositions - 1) / kRunPositions;
  const Sizes sizes = {
      queries, std::min(kQueriesAtOnce, queries * std::clamp<std::int64_t>(runs, 1, kMostRuns)),
      activation_bytes(activation_of(multiplied_format(pass.kept)), s.width()),
      prepared_bytes(pass, 1, s.rank), floats_of_thread(s, pass.kept, tokens, RunSums::kFolded)};
  Workspace::Frame memory;
  take_vectors(memory, s, sizes, pass.num_threads);
  return memory.num_bytes();
}

}  // namespace moeinf
