#include "moeinf/compute/layers/latent.h"

#include <algorithm>
#include <cstring>

#include "compute/layout.h"
#include "latent_heads.h"

namespace moeinf {
namespace {

// What a thread holds beside what it attends in: the sums of a run, where runs are folded one by one.
std::int64_t folded_floats(const LatentShape& s) { return kBlockQueries * s.rank; }

// Some heads of some tokens whose runs are equally long. Each query attends to runs of rows. Where there are
// few queries each run is a task, and the runs are put together in the end; else one task goes from run to
// run. Both come to the same, bit for bit.
class HeadsOfTokens {
 public:
  HeadsOfTokens(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values,
                const LatentRows& cache, std::int64_t length, std::int64_t tokens, std::int64_t first_head,
                std::int64_t num_heads)
      : pool_(kernels.pool()),
        s_(shape),
        cache_(cache),
        length_(length),
        tokens_(tokens),
        num_queries_(num_heads * tokens),
        num_blocks_((num_queries_ + kBlockQueries - 1) / kBlockQueries),
        run_rows_(run_positions(length + 1)),
        num_runs_((length + tokens + run_rows_ - 1) / run_rows_),
        kept_runs_(num_queries_ * num_runs_ <= kQueriesAtOnce ? num_runs_ : 1),
        heads_(kernels, shape, keys_values, cache.format, {tokens, first_head, num_heads, tokens, 1},
               kept_runs_, kept_runs_ < num_runs_ ? folded_floats(shape) : 0) {}

  void run(RowSpan<const float> queries, const Turns& turns, RowSpan<float> out) {
    heads_.take_in(queries, turns);
    pool_.run(num_blocks_ * kept_runs_, [&](std::int64_t task, int thread) {
      const std::int64_t block = task % num_blocks_, run = task / num_blocks_, first = block * kBlockQueries;
      attend_run(block, run, heads_.states_of(run, first), heads_.sums_of(run, first), thread);
      if (kept_runs_ < num_runs_) attend_further(block, thread);
    });
    heads_.take_out(out);
  }

 private:
  std::int64_t queries_of(std::int64_t block) const {
    return std::min(kBlockQueries, num_queries_ - block * kBlockQueries);
  }
  // A query sees the rows from first_seen to rows_seen.
  std::int64_t rows_seen(std::int64_t query) const { return length_ + query % tokens_ + 1; }
  std::int64_t first_seen(std::int64_t query) const {
    return s_.window == 0 ? 0 : std::max<std::int64_t>(0, rows_seen(query) - s_.window);
  }

  // What a block of queries sees of a run of rows, which are read once for all of them.
  void attend_run(std::int64_t block, std::int64_t run, SoftmaxState* states, float* sums, int thread) {
    const std::int64_t first = block * kBlockQueries, queries = queries_of(block), start = run * run_rows_;
    std::int64_t before[kBlockQueries], seen[kBlockQueries], end = 0;
    for (std::int64_t p = 0; p < queries; ++p) {
      before[p] = first_seen(first + p) - start;
      seen[p] = rows_seen(first + p) - start;
      end = std::max(end, seen[p]);
    }
    heads_.begin(first, queries, run == 0, states);
    const std::size_t at = static_cast<std::size_t>(start) * row_bytes(cache_.format, s_.width());
    heads_.attend(first, queries, {{cache_.data + at, cache_.format}, std::min(end, run_rows_), before, seen},
                  states, sums, thread);
  }

  // The runs of a block behind its first, one after the other.
  void attend_further(std::int64_t block, int thread) {
    SoftmaxState states[kBlockQueries];
    float* const sums = heads_.spare(thread);
    for (std::int64_t run = 1; run < num_runs_; ++run) {
      attend_run(block, run, states, sums, thread);
      heads_.fold(block * kBlockQueries, queries_of(block), states, sums);
    }
  }

  Pool& pool_;
  const LatentShape& s_;
  const LatentRows& cache_;
  std::int64_t length_, tokens_, num_queries_, num_blocks_;
  std::int64_t run_rows_, num_runs_, kept_runs_;  // kept: whose sums exist side by side
  LatentHeads heads_;
};

// Tokens that attend to chosen rows, each to its own, for all heads. A run's rows are copied to one place, as
// loops need them, and serve all heads of the token while the second-level cache has them.
class ChosenRows {
 public:
  ChosenRows(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values, const LatentRows& cache,
             RowSpan<const std::int64_t> chosen)
      : pool_(kernels.pool()),
        s_(shape),
        cache_(cache),
        chosen_(chosen),
        num_runs_(most_runs(chosen)),
        kept_runs_(chosen.rows * num_runs_ <= kept_sums(shape) / shape.num_heads ? num_runs_ : 1),
        heads_(kernels, shape, keys_values, cache.format,
               {chosen.rows, 0, shape.num_heads, 1, shape.num_heads}, kept_runs_,
               spare_floats(shape, cache.format, chosen.cols)) {}

  void run(RowSpan<const float> queries, const Turns& turns, RowSpan<float> out) {
    heads_.take_in(queries, turns);
    pool_.run(chosen_.rows * kept_runs_, [&](std::int64_t task, int thread) {
      const std::int64_t token = task % chosen_.rows, run = task / chosen_.rows;
      attend_run(token, run, thread);
      for (std::int64_t next = 1; kept_runs_ < num_runs_ && next < num_runs_; ++next)
        attend_run(token, next, thread);
    });
    heads_.take_out(out);
  }

  static std::int64_t tokens_at_once(const LatentShape& s) {
    return std::clamp<std::int64_t>(kQueriesAtOnce / s.num_heads, 1, kTokensAtOnce);
  }
  // Of states and sums: a token alone has all its runs side by side, so that threads share them.
  static std::int64_t kept_sums(const LatentShape& s) {
    return std::max(kQueriesAtOnce, s.num_heads * kMostRuns);
  }
  // The rows of a run, and the sums of a run that is folded.
  static std::int64_t spare_floats(const LatentShape& s, Format kept, std::int64_t each) {
    return rows_floats(s, kept, each) + folded_floats(s);
  }

 private:
  static std::int64_t rows_floats(const LatentShape& s, Format kept, std::int64_t each) {
    const std::size_t row = row_bytes(kept, s.width());
    return round_up(static_cast<std::int64_t>(row) * run_positions(each), 64) / 4;
  }
  static std::int64_t count_of(const std::int64_t* positions, std::int64_t each) {
    return std::find_if(positions, positions + each, [](std::int64_t p) { return p < 0; }) - positions;
  }
  static std::int64_t most_runs(RowSpan<const std::int64_t> chosen) {
    std::int64_t most = 1;
    for (std::int64_t t = 0; t < chosen.rows; ++t) {
      const std::int64_t count = count_of(chosen.row(t), chosen.cols), length = run_positions(count);
      most = std::max(most, (count + length - 1) / length);
    }
    return most;
  }

  // How long runs are depends on how many rows the token has chosen, and on nothing else.
  void attend_run(std::int64_t token, std::int64_t run, int thread) {
    const std::int64_t* const positions = chosen_.row(token);
    const std::int64_t seen = count_of(positions, chosen_.cols), length = run_positions(seen);
    const std::int64_t start = run * length, count = std::min(length, seen - start);
    const bool folds = run >= kept_runs_;
    if (count <= 0) {
      if (!folds) heads_.begin(first_of(token), s_.num_heads, false, heads_.states_of(run, first_of(token)));
      return;
    }
    float* const sums = heads_.spare(thread);
    auto* const rows = reinterpret_cast<unsigned char*>(sums + folded_floats(s_));
    const std::size_t bytes = row_bytes(cache_.format, s_.width());
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(rows + static_cast<std::size_t>(i) * bytes,
                  cache_.data + static_cast<std::size_t>(positions[start + i]) * bytes, bytes);
    }
    std::int64_t all[kBlockQueries];
    std::fill_n(all, kBlockQueries, count);
    const std::int64_t none[kBlockQueries] = {};
    for (std::int64_t head = 0; head < s_.num_heads; head += kBlockQueries) {
      const std::int64_t first = first_of(token) + head,
                         queries = std::min(kBlockQueries, s_.num_heads - head);
      SoftmaxState own[kBlockQueries];
      SoftmaxState* const states = folds ? own : heads_.states_of(run, first);
      float* const into = folds ? sums : heads_.sums_of(run, first);
      heads_.begin(first, queries, run == 0, states);
      heads_.attend(first, queries, {{rows, cache_.format}, count, none, all}, states, into, thread);
      if (folds) heads_.fold(first, queries, states, sums);
    }
  }
  std::int64_t first_of(std::int64_t token) const { return token * s_.num_heads; }

  Pool& pool_;
  const LatentShape& s_;
  const LatentRows& cache_;
  RowSpan<const std::int64_t> chosen_;
  std::int64_t num_runs_, kept_runs_;
  LatentHeads heads_;
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
    std::memcpy(end, row + s.rank, static_cast<std::size_t>(2 * s.rotary_pairs) * sizeof(float));
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

void attend_chosen_latents(Kernels& kernels, const LatentShape& s, const Matrix& keys_values,
                           const LatentRows& cache, RowSpan<const std::int64_t> chosen,
                           RowSpan<const float> queries, const Turns& turns, RowSpan<float> out) {
  const std::int64_t most = ChosenRows::tokens_at_once(s);
  for (std::int64_t start = 0; start < queries.rows; start += most) {
    const std::int64_t count = std::min(most, queries.rows - start);
    ChosenRows(kernels, s, keys_values, cache, chosen.part(start, count))
        .run(queries.part(start, count), turns.part(start, count), out.part(start, count));
  }
}

std::size_t latent_workspace_bytes(const LatentShape& s, const PassShape& pass, std::int64_t most_chosen) {
  const std::int64_t tokens = std::min(pass.tokens, kTokensAtOnce);
  const std::int64_t queries = std::min(kQueriesAtOnce, s.num_heads * tokens);
  const std::int64_t runs = (pass.positions + kRunPositions - 1) / kRunPositions;
  const std::int64_t kept = std::min(kQueriesAtOnce, queries * std::clamp<std::int64_t>(runs, 1, kMostRuns));
  const std::size_t all = LatentHeads::workspace_bytes(s, pass, tokens, queries, kept, folded_floats(s));
  if (most_chosen == 0) return all;
  const std::int64_t choosing = std::min(pass.tokens, ChosenRows::tokens_at_once(s));
  return std::max(
      all, LatentHeads::workspace_bytes(s, pass, choosing, choosing * s.num_heads, ChosenRows::kept_sums(s),
                                        ChosenRows::spare_floats(s, pass.kept, most_chosen)));
}

}  // namespace moeinf
