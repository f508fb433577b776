// What attention in the latents' space has in common, whichever rows a token attends to: queries into that
// space, attention of some of them to rows that lie one behind the other, and what comes of it out again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeinf/compute/layers/latent.h"
#include "runs.h"

namespace moeinf {

constexpr std::int64_t kQueriesAtOnce = 2048;  // bounds the memory of what is kept of queries
constexpr std::int64_t kTokensAtOnce = 128;    // likewise, of a thread
constexpr std::int64_t kBlockQueries = 32;     // that attend together: rows are read once for all

// Some heads of some tokens. The query of a token and a head has the number head * of_head + token *
// of_token, heads counted from first_head on.
struct LatentQueries {
  std::int64_t tokens, first_head, num_heads, of_head, of_token;

  std::int64_t count() const { return tokens * num_heads; }
  std::int64_t number(std::int64_t head, std::int64_t token) const {
    return head * of_head + token * of_token;
  }
};

// Rows [count, width] of a run. Each query of a block sees those from before to seen, which may lie outside.
struct LatentRun {
  LatentRows rows;
  std::int64_t count;
  const std::int64_t *before, *seen;
};

class LatentHeads {
 public:
  // kept_runs: runs of each query whose states and sums exist side by side. more_floats: what else a thread
  // holds while it attends, as `spare` has it.
  LatentHeads(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values, Format kept,
              const LatentQueries& queries, std::int64_t kept_runs, std::int64_t more_floats);

  // queries [tokens, heads of the layer, query_dim], not rotated yet.
  void take_in(RowSpan<const float> queries, const Turns& turns);
  // The states of `count` queries from number `first` on, before they attend to a run: the first has the
  // sinks.
  void begin(std::int64_t first, std::int64_t count, bool first_run, SoftmaxState* states) const;
  // Brings these states, of at most kBlockQueries, up to date with a run; writes sums [count, rank].
  void attend(std::int64_t first, std::int64_t count, const LatentRun& run, SoftmaxState* states, float* sums,
              int thread);
  // Adds a run to the first one of these queries.
  void fold(std::int64_t first, std::int64_t count, const SoftmaxState* states, const float* sums);
  // The kept runs put together, into out [tokens, heads of the layer, value_dim].
  void take_out(RowSpan<float> out);

  SoftmaxState* states_of(std::int64_t run, std::int64_t query) const {
    return v_.states + run * queries_.count() + query;
  }
  float* sums_of(std::int64_t run, std::int64_t query) const {
    return v_.sums + (run * queries_.count() + query) * s_.rank;
  }
  float* spare(int thread) const { return of_thread(thread) + attending_floats(s_, kept_); }

  // What `count` queries of `tokens` tokens take, of which kept_sums runs exist side by side.
  static std::size_t workspace_bytes(const LatentShape& shape, const PassShape& pass, std::int64_t tokens,
                                     std::int64_t count, std::int64_t kept_sums, std::int64_t more_floats);

 private:
  // How much there is of what a pass holds.
  struct Sizes {
    std::int64_t queries, kept_sums;         // of queries, and of the runs whose sums exist side by side
    std::size_t query_bytes, mixture_bytes;  // of one, as it is multiplied
    std::int64_t thread_floats;              // a multiple of a cache line's
  };
  struct Vectors {
    unsigned char *queries, *mixtures;
    float* sums;           // [kept runs, queries, rank]
    SoftmaxState* states;  // [kept runs, queries]
    float* threads;
  };
  static Vectors take_vectors(Workspace::Frame& memory, const LatentShape& s, const Sizes& sizes,
                              int num_threads);
  static std::int64_t attending_floats(const LatentShape& s, Format kept);
  static std::int64_t floats_of_thread(const LatentShape& s, Format kept, std::int64_t tokens,
                                       std::int64_t more_floats);

  float* of_thread(int thread) const { return v_.threads + thread * sizes_.thread_floats; }
  Matrix head_matrix(std::int64_t head, std::int64_t first, std::int64_t count) const;
  const unsigned char* rows_from(const LatentRows& rows, std::int64_t start, std::int64_t count,
                                 int thread) const;
  void take_in(std::int64_t head, RowSpan<const float> queries, const Turns& turns, int thread);
  void take_out(std::int64_t head, RowSpan<float> out, int thread);
  void attend_shared(std::int64_t first, std::int64_t count, const LatentRun& run, SoftmaxState* states,
                     float* sums, int thread);
  void attend_rows(std::int64_t first, std::int64_t count, const LatentRun& run, std::int64_t start,
                   SoftmaxState* states, float* sums, int thread);

  Kernels& kernels_;
  const LatentShape& s_;
  const Matrix& keys_values_;
  Format kept_, format_;  // format_: of rows, as they are multiplied
  LatentQueries queries_;
  std::int64_t kept_runs_;
  ActivationKind query_kind_, mixture_kind_;
  Sizes sizes_;
  Workspace::Frame memory_;
  Vectors v_;
};

}  // namespace moeinf
