#include "moeinf/compute/kernels.h"

#include <algorithm>
#include <stdexcept>

#include "layout.h"
#include "moeinf/compute/squares.h"

namespace moeinf {
namespace {

constexpr std::int64_t kRowsStep = 16, kPanelRowsStep = 32;  // the rows of a panel of int8 weights
constexpr std::int64_t kTaskBytes = 256 << 10;
constexpr std::int64_t kMatmulRows = 192;    // a task reads all activations: 4 panels of 48 rows share that
constexpr std::int64_t kTasksPerThread = 8;  // so that threads of unequal speed end together
constexpr std::int64_t kInlineElements = 32 << 10;  // prepared by the caller alone: some 2 us

std::size_t scratch_bytes_of(const Ops& ops, std::int64_t cols) {
  const std::size_t panel = matmul_scratch_bytes(cols);
  return ops.multiply_tiles == nullptr ? panel : std::max(panel, tile_scratch_bytes(cols));
}

std::size_t round_up_to_line(std::size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

}  // namespace

Kernels::Kernels(int num_threads, const std::string& isa) : ops_(ops_for(isa)), pool_(num_threads) {}

void Kernels::release_scratch() {
  workspace_.release();
  thread_scratch_.release();
  thread_scratch_bytes_ = 0;
}

std::size_t Kernels::scratch_bytes() const { return thread_scratch_.used_bytes() + workspace_.used_bytes(); }

void Kernels::linears(const std::vector<Matrix>& ws, RowSpan<const float> x, const std::vector<float*>& ys) {
  linears(ws, x, ys.data(), {});
}

void Kernels::linear(const Matrix& w, RowSpan<const float> x, float* y, const Finish& finish) {
  linears({&w, 1}, x, &y, finish);
}

void Kernels::linears(Span<const Matrix> ws, RowSpan<const float> x, float* const* ys, const Finish& finish) {
  if (ws.empty() || x.rows == 0) return;
  for (const Matrix& w : ws)
    if (w.cols != x.cols) throw std::invalid_argument("the matrices differ in their columns from the rows");
  if (!watched_.empty()) add_watched(ws, x);
  Workspace::Frame memory(workspace_);
  const std::array<const void*, kActivationKinds> inputs = prepare_for(memory, ws, x);
  split_rows(ws, x.rows);
  pool_.run(row_tasks_.back().end_task, [&](std::int64_t task, int thread) {
    std::size_t m = 0;
    while (task >= row_tasks_[m].end_task) ++m;
    const RowTasks& tasks = row_tasks_[m];
    const std::int64_t first = (task - (m == 0 ? 0 : row_tasks_[m - 1].end_task)) * tasks.num_rows;
    const std::int64_t last = std::min(first + tasks.num_rows, ws[m].rows);
    const ActivationKind kind = activation_of(ws[m].format, x.rows);
    const void* input = inputs[static_cast<std::size_t>(kind)];
    if (last == ws[m].rows && m + 1 < ws.size()) fetch_rows(ws[m + 1].data);
    multiply(ws[m], first, last, kind, input, x.rows, thread, ys[m], ws[m].rows);
    if (finish.bias == nullptr && !finish.activation) return;
    for (std::int64_t i = 0; i < x.rows; ++i) {
      float* const y = ys[m] + i * ws[m].rows;
      for (std::int64_t r = first; finish.bias != nullptr && r < last; ++r) y[r] += finish.bias[r];
      if (finish.activation)
        ops_.activate(*finish.activation, {}, y + first, nullptr, y + first, last - first);
    }
  });
}

void Kernels::add_watched(Span<const Matrix> ws, RowSpan<const float> x) {
  for (const Matrix& w : ws) {
    const auto found = watched_.find(w.data);
    if (found == watched_.end() || found->second.cols != x.cols) continue;
    for (std::int64_t i = 0; i < x.rows; ++i) add_squares(x.row(i), x.cols, found->second.sums);
  }
}

// x in each kind that a matrix asks for, by ActivationKind.
std::array<const void*, kActivationKinds> Kernels::prepare_for(Workspace::Frame& memory,
                                                               Span<const Matrix> ws,
                                                               RowSpan<const float> x) {
  std::array<const void*, kActivationKinds> inputs{};
  for (const Matrix& w : ws) {
    const ActivationKind kind = activation_of(w.format, x.rows);
    const auto index = static_cast<std::size_t>(kind);
    if (inputs[index] != nullptr) continue;
    void* out = memory.take_bytes(static_cast<std::size_t>(x.rows) * activation_bytes(kind, x.cols));
    prepare(kind, x, out);
    inputs[index] = out;
  }
  if (by_tiles(x.rows)) reserve_thread_scratch(x.cols);
  return inputs;
}

void Kernels::split_rows(Span<const Matrix> ws, std::int64_t num_x) {
  std::int64_t total_rows = 0, end_task = 0;
  for (const Matrix& w : ws) total_rows += w.rows;
  row_tasks_.resize(ws.size());
  for (std::size_t m = 0; m < ws.size(); ++m) {
    const std::int64_t rows = rows_per_task(ws[m].format, ws[m].cols, num_x, total_rows);
    end_task += (ws[m].rows + rows - 1) / rows;
    row_tasks_[m] = {rows, end_task};
  }
}

std::int64_t Kernels::rows_per_task(Format format, std::int64_t cols, std::int64_t num_x,
                                    std::int64_t total_rows) const {
  const std::int64_t most = most_rows_per_task(format, cols, num_x);
  const std::int64_t balanced = total_rows / (kTasksPerThread * pool_.num_threads());
  const std::int64_t step = num_x > kMaxDotRows ? kPanelRowsStep : kRowsStep;
  return std::max(std::min(most, balanced) / step, std::int64_t{1}) * step;
}

std::int64_t Kernels::most_rows_per_task(Format format, std::int64_t cols, std::int64_t num_x) {
  const auto bytes_of_row = static_cast<std::int64_t>(row_bytes(format, cols));
  return std::max(kRowsStep, num_x > kMaxDotRows ? kMatmulRows : kTaskBytes / bytes_of_row);
}

void Kernels::prepare(ActivationKind kind, RowSpan<const float> x, void* out) {
  const std::size_t stride = activation_bytes(kind, x.cols);
  const std::int64_t at_once = kind == ActivationKind::kTiles ? kTileActivations : 1;
  const auto prepare_some = [&](std::int64_t task, int) {
    const float* rows[kTileActivations];
    const std::int64_t first = task * at_once, count = std::min(x.rows - first, at_once);
    for (std::int64_t i = 0; i < count; ++i) rows[i] = x.row(first + i);
    prepare_rows(kind, rows, count, x.cols,
                 static_cast<unsigned char*>(out) + static_cast<std::size_t>(first) * stride);
  };
  const std::int64_t tasks = (x.rows + at_once - 1) / at_once;
  if (x.rows * x.cols > kInlineElements) {
    pool_.run(tasks, prepare_some);
  } else {
    for (std::int64_t task = 0; task < tasks; ++task) prepare_some(task, 0);
  }
}

void Kernels::prepare_rows(ActivationKind kind, const float* const* rows, std::int64_t count,
                           std::int64_t cols, unsigned char* out) const {
  const std::size_t stride = activation_bytes(kind, cols);
  for (std::int64_t i = 0; i < count; out += stride, ++i) {
    if (kind != ActivationKind::kTiles) {
      ops_.prepare(kind, rows[i], cols, out);
    } else if (i % kTileActivations == 0) {
      const std::int64_t of_tile = std::min<std::int64_t>(count - i, kTileActivations);
      ops_.prepare_tile(rows + i, static_cast<int>(of_tile), cols, out);
    }
  }
}

ActivationKind Kernels::activation_of(Format format, std::int64_t num_x) const {
  const ActivationKind kind = moeinf::activation_of(format);
  const bool tiles = ops_.multiply_tiles != nullptr && kind != ActivationKind::kF32 && by_tiles(num_x);
  return tiles ? ActivationKind::kTiles : kind;
}

void Kernels::multiply(const Matrix& w, std::int64_t first, std::int64_t last, ActivationKind kind,
                       const void* x, std::int64_t num_x, int thread, float* y, std::int64_t y_stride) {
  const bool tiles = kind == ActivationKind::kTiles;
  if (!tiles && !by_tiles(num_x)) {
    const std::size_t x_bytes = activation_bytes(kind, w.cols);
    const std::int64_t groups = (num_x + kMaxDotRows - 1) / kMaxDotRows;
    for (std::int64_t group = 0; group < groups; ++group) {  // of sizes that differ by one at most
      const std::int64_t i = num_x * group / groups, end = num_x * (group + 1) / groups;
      ops_.dot_rows(w, first, last,
                    static_cast<const unsigned char*>(x) + static_cast<std::size_t>(i) * x_bytes,
                    static_cast<int>(end - i), y + i * y_stride, y_stride);
    }
  } else {
    if (scratch_bytes_of(ops_, w.cols) > thread_scratch_bytes_)
      throw std::logic_error("no scratch memory was reserved for so many columns");
    auto* const memory = static_cast<unsigned char*>(thread_scratch_.reserve(0)) +
                         static_cast<std::size_t>(thread) * thread_scratch_bytes_;
    (tiles ? ops_.multiply_tiles : ops_.matmul_rows)(w, first, last, x, num_x, memory, y, y_stride);
  }
  if (w.scale == 1) return;
  for (std::int64_t i = 0; i < num_x; ++i)
    for (std::int64_t r = first; r < last; ++r) y[i * y_stride + r] *= w.scale;
}

void Kernels::reserve_thread_scratch(std::int64_t cols) {
  const std::size_t num_bytes = round_up_to_line(scratch_bytes_of(ops_, cols));
  if (num_bytes <= thread_scratch_bytes_) return;
  thread_scratch_bytes_ = 0;  // where the memory is refused, that of before is gone, too
  thread_scratch_.reserve(num_bytes * static_cast<std::size_t>(pool_.num_threads()));
  thread_scratch_bytes_ = num_bytes;
}

std::size_t prepared_bytes(const PassShape& pass, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows) * (activation_bytes(moeinf::activation_of(pass.dtype), cols) +
                                           activation_bytes(ActivationKind::kInt8, cols));
}

std::size_t linear_workspace_bytes(const PassShape& pass, std::int64_t cols) {
  return prepared_bytes(pass, pass.tokens, cols);
}

std::size_t panel_bytes(const PassShape& pass) {
  const std::size_t rows = round_up_to_line(matmul_scratch_bytes(kPanelCols));
  return static_cast<std::size_t>(pass.num_threads) * std::max<std::size_t>(kTilePanelBytes, rows);
}

}  // namespace moeinf
