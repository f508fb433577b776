// Threads, inner loops and a workspace put together: what every operation on weights is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moeinf/compute/buffer.h"
#include "moeinf/compute/ops.h"
#include "moeinf/compute/pool.h"
#include "moeinf/compute/workspace.h"
#include "moeinf/span.h"

namespace moeinf {

// Of a pass. Expanding weights pays from some 8 rows on, and the experts of a layer share the rows of a
// prompt.
constexpr std::int64_t kFewTokens = 64;

// Asks for the first lines of rows that are multiplied soon: the kernels ask for those behind them.
inline void fetch_rows(const unsigned char* rows) {
  for (int line = 0; line < 4096; line += 64) __builtin_prefetch(rows + line);
}

// What is done to a product before others see it: a bias [rows] is added, then a function of each number
// taken.
struct Finish {
  const float* bias = nullptr;
  std::optional<Activation> activation{};  // of those without limits
};

class Kernels {
 public:
  // isa "": the best that this CPU has. Throws std::invalid_argument as ops_for does, or for num_threads < 1.
  Kernels(int num_threads, const std::string& isa);

  Pool& pool() { return pool_; }
  const Ops& ops() const { return ops_; }

  // What is computed from here on is part of a pass over so many tokens, in however many calls. This number
  // decides how rows are multiplied and attended, so that what comes out does not depend on how a prompt is
  // cut into calls, or on how many of its tokens meet in one expert. 0, as at first: each call counts its own
  // rows.
  void begin_pass(std::int64_t num_tokens) { pass_tokens_ = num_tokens; }
  std::int64_t tokens_of_pass(std::int64_t num_x) const { return pass_tokens_ > 0 ? pass_tokens_ : num_x; }
  // Whether num_x rows of activations are multiplied by matmul_rows, or by dot_rows.
  bool by_tiles(std::int64_t num_x) const {
    return pass_tokens_ > 0 ? pass_tokens_ > kFewTokens : num_x > kMaxDotRows;
  }

  // What num_x rows of activations are turned into before weights of a format are multiplied with them.
  ActivationKind activation_of(Format format, std::int64_t num_x) const;

  Workspace& workspace() { return workspace_; }

  // ys[m] [x.rows, ws[m].rows] = x times the transposed ws[m], for all m in one parallel region; x is
  // prepared once for each kind. Throws std::invalid_argument for ws of other cols than x has.
  void linears(const std::vector<Matrix>& ws, RowSpan<const float> x, const std::vector<float*>& ys);
  void linear(const Matrix& w, RowSpan<const float> x, float* y, const Finish& finish = {});
  // From here on the squares of all rows that `linears` multiplies by w are added to sums [w.cols] as well.
  // w is known by the place of its weights, which several matrices may share.
  void watch(const Matrix& w, float* sums) { watched_[w.data] = {sums, w.cols}; }

  // Rows of one matrix that a task takes, of a call that goes over total_rows rows of such matrices: so many
  // bytes that taking a task costs nothing beside reading them, but several tasks for each thread. A multiple
  // of 16, so that no two tasks write to one cache line. Grows with total_rows.
  std::int64_t rows_per_task(Format format, std::int64_t cols, std::int64_t num_x,
                             std::int64_t total_rows) const;
  static std::int64_t most_rows_per_task(Format format, std::int64_t cols, std::int64_t num_x);
  // For the drivers of kernels: the rows of x turned into `kind` at `out`, by all threads where that pays.
  void prepare(ActivationKind kind, RowSpan<const float> x, void* out);
  // The same inside a task, of `count` rows wherever they lie.
  void prepare_rows(ActivationKind kind, const float* const* rows, std::int64_t count, std::int64_t cols,
                    unsigned char* out) const;
  // y[i * y_stride + r] = row r of w times x_i, times w.scale, for first <= r < last. x is prepared as
  // `kind` by one call of prepare or prepare_rows. Called inside a task, after reserve_thread_scratch(w.cols)
  // where it goes by tiles.
  void multiply(const Matrix& w, std::int64_t first, std::int64_t last, ActivationKind kind, const void* x,
                std::int64_t num_x, int thread, float* y, std::int64_t y_stride);
  void reserve_thread_scratch(std::int64_t cols);
  // Gives working memory back to the machine; the next calls take what they need. Between two calls.
  void release_scratch();
  std::size_t scratch_bytes() const;  // of the workspace and of all threads, as far as calls have used them

 private:
  void linears(Span<const Matrix> ws, RowSpan<const float> x, float* const* ys, const Finish& finish);
  std::array<const void*, kActivationKinds> prepare_for(Workspace::Frame& memory, Span<const Matrix> ws,
                                                        RowSpan<const float> x);
  void split_rows(Span<const Matrix> ws, std::int64_t num_x);

  void add_watched(Span<const Matrix> ws, RowSpan<const float> x);

  struct Watched {
    float* sums;
    std::int64_t cols;
  };
  struct RowTasks {         // of one matrix of a call
    std::int64_t num_rows;  // of each task
    std::int64_t end_task;  // where those of the next matrix begin
  };

  const Ops& ops_;
  Pool pool_;
  std::int64_t pass_tokens_ = 0;
  std::vector<RowTasks> row_tasks_;
  std::map<const unsigned char*, Watched> watched_;
  Workspace workspace_;
  Buffer thread_scratch_;                 // panels of weights that threads lay out anew
  std::size_t thread_scratch_bytes_ = 0;  // of one thread
};

// Of each token the cosines and sines by which the pairs of a head's numbers are rotated: [tokens, pairs].
struct Turns {
  RowSpan<const float> cos, sin;

  Turns part(std::int64_t first, std::int64_t count) const {
    return {cos.part(first, count), sin.part(first, count)};
  }
};

// The largest pass that a workspace is to hold.
struct PassShape {
  Format dtype;            // of weights, unless these are quantised
  Format kept;             // of keys and values
  std::int64_t tokens;     // of the pass, which may go through layers in several calls
  std::int64_t positions;  // of the whole sequence
  int num_threads;
};

// What numbers of a cache are when many of them are multiplied: themselves, or what quantised ones are
// widened to.
inline Format multiplied_format(Format kept) { return block_weights(kept) == 1 ? kept : Format::kBF16; }

// What prepared inputs of `rows` rows take at most, for weights of the pass's dtype and quantised ones
// together.
std::size_t prepared_bytes(const PassShape& pass, std::int64_t rows, std::int64_t cols);
// What Kernels::linears takes of the workspace, and what the threads of a pass lay out of weights.
std::size_t linear_workspace_bytes(const PassShape& pass, std::int64_t cols);
std::size_t panel_bytes(const PassShape& pass);

// Measured rate, bytes/s, of reading num_bytes of fresh huge-page memory with all threads of the pool, best
// of `repeats`. Of less than several times the last-level cache, part is read from there. Throws
// std::invalid_argument for less than 1 MiB or 1 repeat.
double memory_read_rate(Pool& pool, std::size_t num_bytes, int repeats);

struct ReadRates {
  double plain,
      product;  // bytes/s of reading alone, and of products with weights that lie in the same memory
};

// Of each repeat, by all threads, one after the other: a machine's rates change from one second to the next.
// num_bytes of fresh huge-page memory have copies of w one behind the other, each of which Kernels::linear
// multiplies by num_x activations. Throws std::invalid_argument for less than 1 MiB, less memory than w
// takes, 1 repeat, or other than 1 to kMaxDotRows activations.
std::vector<ReadRates> product_read_rates(Kernels& kernels, const Matrix& w, std::int64_t num_x,
                                          std::size_t num_bytes, int repeats);
// The same, bytes/s, of weights that stay in the caches of a core, where w fits there: each thread multiplies
// a copy of its own again and again.
std::vector<double> cached_product_rates(Kernels& kernels, const Matrix& w, std::int64_t num_x, int repeats);

}  // namespace moeinf
