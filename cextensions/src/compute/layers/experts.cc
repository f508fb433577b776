#include "moeinf/compute/layers/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "compute/layout.h"

namespace moeinf {
namespace {

// Token-expert pairs whose activations exist at once: bounds their memory, and is enough work for the threads
// between two barriers.
constexpr std::int64_t kPairsAtOnce = 512;
constexpr std::int64_t kNotInThisRun = std::int64_t{1} << 40;  // tasks
constexpr std::int64_t kInlineElements = 128 << 10;            // summed by the caller alone: some 5 us

std::int64_t num_tasks(std::int64_t rows, std::int64_t rows_of_task) {
  return (rows + rows_of_task - 1) / rows_of_task;
}

std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::vector<std::vector<ExpertSlice>> in_one_slice(const std::vector<ExpertParts>& layers) {
  std::vector<std::vector<ExpertSlice>> found;
  for (const ExpertParts& parts : layers) found.push_back({whole(parts)});
  return found;
}

}  // namespace

ExpertKernel::ExpertKernel(Kernels& kernels, const unsigned char* memory, std::size_t num_bytes,
                           const std::vector<std::vector<ExpertSlice>>& layers,
                           const std::vector<ExpertForm>& forms)
    : kernels_(kernels), memory_(memory), num_bytes_(num_bytes) {
  if (layers.empty()) throw std::invalid_argument("experts have parts");
  if (forms.empty() || (forms.size() > 1 && layers.size() > 1 && forms.size() != layers.size()))
    throw std::invalid_argument("experts have one form, or one for each layer");
  for (std::size_t i = 0; i < std::max(layers.size(), forms.size()); ++i) {
    const std::vector<ExpertSlice>& slices = layers[layers.size() > 1 ? i : 0];
    layers_.push_back(layer_of(slices, forms[forms.size() > 1 ? i : 0]));
    if (layers_.back().gate.cols != hidden_size())
      throw std::invalid_argument("the experts of all layers have one hidden size");
    most_slices_ = std::max(most_slices_, static_cast<std::int64_t>(slices.size()));
  }
  layer_ = layers_.data();
}

ExpertKernel::ExpertKernel(Kernels& kernels, const unsigned char* memory, std::size_t num_bytes,
                           const std::vector<ExpertParts>& layers, const std::vector<ExpertForm>& forms)
    : ExpertKernel(kernels, memory, num_bytes, in_one_slice(layers), forms) {}

void ExpertKernel::begin(RowSpan<const float> hidden, RowSpan<const std::int64_t> ids, const float* weights,
                         std::int64_t layer) {
  has_begun_ = false;
  if (layers_.size() > 1) {
    if (layer < 0 || as_size(layer) >= layers_.size())
      throw std::invalid_argument("there is no layer " + std::to_string(layer));
    layer_ = &layers_[as_size(layer)];
  }
  const auto watched = watched_.find(layer);
  squares_ = watched == watched_.end() ? nullptr : &watched->second;
  const auto normed = norms_.find(layer);
  norm_ = normed == norms_.end() ? nullptr : &normed->second;
  num_tokens_ = ids.rows;
  top_k_ = ids.cols;
  weights_.assign(weights, weights + ids.size());
  groups_.sort(ids.data, num_tokens_ * top_k_);
  shares_input_ = num_tokens_ == 1 && groups_.size() == as_size(top_k_);
  num_done_.assign(groups_.size(), 0);
  is_open_ = false;
  num_computed_ = 0;
  jobs_.clear();
  reserve();
  prepare_inputs(hidden);
  if (squares_ != nullptr) add_inputs(hidden);
  has_begun_ = true;
}

// All memory of the step: compute may be called many times, and must not move what is there.
void ExpertKernel::reserve() {
  const std::size_t num_pairs = groups_.sorted.size();
  const ExpertPart &gate = layer_->gate, &down = layer_->down;
  std::int64_t ups = 0, most_pairs = std::min(kPairsAtOnce, static_cast<std::int64_t>(num_pairs));
  for (const std::int64_t count : groups_.counts) most_pairs = std::max(most_pairs, count);
  for (const std::int64_t count : groups_.counts) {
    for (const ExpertPart* part : {&gate, layer_->up ? &*layer_->up : &gate, &down}) {
      const ActivationKind kind = kind_of(*part);
      Buffer& buffer = (part == &down ? acts_ : inputs_)[static_cast<std::size_t>(kind)];
      const std::size_t num_rows = part == &down ? as_size(most_pairs) : num_pairs;
      buffer.reserve(num_rows * activation_bytes(kind, part->cols));
    }
    const std::int64_t most_rows = act_task_rows(gate.rows, count, groups_.size());
    if (layer_->up) ups = std::max(ups, count * std::min(most_rows, gate.rows));
  }
  if (kernels_.by_tiles(num_tokens_)) kernels_.reserve_thread_scratch(std::max(gate.cols, down.cols));
  const std::size_t ups_of_thread = (as_size(ups) + 15) / 16 * 16;
  ups_.reserve_array<float>(ups_of_thread * as_size(kernels_.pool().num_threads()));
  ups_of_thread_ = ups_of_thread;
  gates_.reserve_array<float>(as_size(most_pairs * gate.rows));
  outputs_.reserve_array<float>(num_pairs * as_size(down.rows));
  if (tasks_left_.size() < groups_.size())
    tasks_left_ = std::vector<std::atomic<std::int64_t>>(groups_.size());
}

void ExpertKernel::release_scratch() {
  has_begun_ = false;
  for (auto* const buffers : {&inputs_, &acts_})
    for (Buffer& buffer : *buffers) buffer.release();
  for (Buffer* const buffer : {&gates_, &ups_, &outputs_}) buffer->release();
}

std::size_t ExpertKernel::scratch_bytes() const {
  std::size_t total = gates_.used_bytes() + ups_.used_bytes() + outputs_.used_bytes();
  for (const auto& buffers : {&inputs_, &acts_}) {
    for (const Buffer& buffer : *buffers) total += buffer.used_bytes();
  }
  return total;
}

std::size_t ExpertKernel::workspace_bytes(const ExpertParts& parts, std::int64_t top_k,
                                          const PassShape& pass) {
  const ExpertPart& first = parts.gate ? *parts.gate : parts.up;
  const std::int64_t tokens = pass.tokens, pairs = tokens * top_k;
  const std::int64_t pairs_at_once = std::max(tokens, std::min(kPairsAtOnce, pairs));
  std::size_t total = 0;
  const auto keep = [&](const std::vector<const ExpertPart*>& read, std::int64_t rows) {
    std::array<std::size_t, 3> by_kind{};
    for (const ExpertPart* part : read) {
      const ActivationKind kind = activation_of(part->format);
      std::size_t& num_bytes = by_kind[static_cast<std::size_t>(kind)];
      num_bytes = std::max(num_bytes, as_size(rows) * activation_bytes(kind, part->cols));
    }
    for (const std::size_t num_bytes : by_kind) total += num_bytes;
  };
  keep({&first, &parts.up}, pairs);
  keep({&parts.down}, pairs_at_once);
  total += as_size(pairs_at_once * first.rows + pairs * parts.down.rows) * sizeof(float);
  if (!parts.gate) return total;
  const std::int64_t few_rows = Kernels::most_rows_per_task(first.format, first.cols, 1);
  const std::int64_t many_rows = Kernels::most_rows_per_task(first.format, first.cols, tokens);
  const std::int64_t ups =
      std::max(std::min<std::int64_t>(tokens, kMaxDotRows) * std::min(few_rows, first.rows),
               tokens * std::min(many_rows, first.rows));
  return total + as_size(round_up(ups, 16) * pass.num_threads) * sizeof(float);
}

void ExpertKernel::prepare_inputs(RowSpan<const float> hidden) {
  const ExpertPart &gate = layer_->gate, &up = layer_->up ? *layer_->up : gate;
  prepare_input(hidden, gate);
  if (kind_of(up) != kind_of(gate)) prepare_input(hidden, up);
}

void ExpertKernel::require_layer(std::int64_t layer) const {
  if (layer < 0 || (layers_.size() > 1 && as_size(layer) >= layers_.size()))
    throw std::invalid_argument("there is no layer " + std::to_string(layer));
}

void ExpertKernel::norm_outputs(std::int64_t layer, std::vector<float> scale, float eps) {
  require_layer(layer);
  if (scale.size() != as_size(hidden_size()) || !(eps >= 0))
    throw std::invalid_argument("outputs have a factor for each number, and an eps of 0 or more");
  norms_[layer] = {std::move(scale), eps};
}

void ExpertKernel::watch(std::int64_t layer, const ExpertSquares& squares) {
  require_layer(layer);
  const ExpertLayer& its = layers_[layers_.size() > 1 ? as_size(layer) : 0];
  if (squares.inputs.cols != hidden_size() || squares.acts.cols != its.down.cols ||
      squares.inputs.rows != squares.acts.rows)
    throw std::invalid_argument(
        "sums of squares have the columns of the matrices, and a row for each expert");
  watched_[layer] = squares;
}

// The tokens of each expert in their order, by one thread: so the sums do not depend on their number.
void ExpertKernel::add_inputs(RowSpan<const float> hidden) {
  if (!groups_.experts.empty() && groups_.experts.back() >= squares_->inputs.rows)
    throw std::invalid_argument("no sums are kept of expert " + std::to_string(groups_.experts.back()));
  kernels_.pool().run(static_cast<std::int64_t>(groups_.size()), [&](std::int64_t group, int) {
    const std::int64_t expert = groups_.experts[as_size(group)], count = groups_.counts[as_size(group)];
    const std::int64_t* pairs = groups_.sorted.data() + groups_.starts[as_size(group)];
    for (std::int64_t i = 0; i < count; ++i)
      add_squares(hidden.row(pairs[i] / top_k_), hidden.cols, squares_->inputs.row(expert));
    squares_->counts[expert] += count;
  });
}

void ExpertKernel::add_acts(const Job& job, const float* values) {
  const std::int64_t cols = layer_->down.cols, count = groups_.counts[job.group];
  float* sums = squares_->acts.row(groups_.experts[job.group]);
  for (std::int64_t i = 0; i < count; ++i) add_squares(values + i * cols, cols, sums);
}

void ExpertKernel::acts(RowSpan<float> out) {
  if (!has_begun_ || num_computed_ == 0 || jobs_.size() != 1 || num_slices() != 1)
    throw std::invalid_argument("activations are those of one expert, behind its compute");
  const Job& job = jobs_[0];
  if (out.rows != groups_.counts[job.group] || out.cols != layer_->down.cols)
    throw std::invalid_argument("activations are [tokens of the expert, columns of down]");
  std::copy_n(gates_.reserve_array<float>(0) + job.first_pair * out.cols, out.size(), out.data);
}

void ExpertKernel::prepare_input(RowSpan<const float> hidden, const ExpertPart& part) {
  if (kind_of(part) == ActivationKind::kTiles) {
    prepare_tiles(hidden, part);
  } else {
    prepare_tokens(hidden, part);
  }
}

// A token's activation is prepared for the first of its experts, and copied for the others.
void ExpertKernel::prepare_tokens(RowSpan<const float> hidden, const ExpertPart& part) {
  const std::size_t num_bytes = activation_bytes(kind_of(part), hidden_size());
  unsigned char* const all = input(part, 0);
  kernels_.pool().run(num_tokens_, [&](std::int64_t token, int) {
    const auto place_of = [&](std::int64_t k) {
      return all + as_size(groups_.position_of[as_size(token * top_k_ + k)]) * num_bytes;
    };
    unsigned char* const first = shares_input_ ? all : place_of(0);
    kernels_.ops().prepare(kind_of(part), hidden.row(token), hidden_size(), first);
    for (std::int64_t k = 1; k < top_k_ && !shares_input_; ++k) std::memcpy(place_of(k), first, num_bytes);
  });
}

// The tokens of an expert together.
void ExpertKernel::prepare_tiles(RowSpan<const float> hidden, const ExpertPart& part) {
  const std::size_t num_groups = shares_input_ ? 1 : groups_.size();
  kernels_.pool().run(static_cast<std::int64_t>(num_groups), [&](std::int64_t group, int) {
    const std::int64_t* pairs = groups_.sorted.data() + groups_.starts[as_size(group)];
    prepare_group(as_size(group), part, input(part, as_size(group)),
                  [&](std::int64_t i) { return hidden.row(pairs[i] / top_k_); });
  });
}

// Rows of an expert's tokens, as many as a tile has at a time.
template <class RowOf>
void ExpertKernel::prepare_group(std::size_t group, const ExpertPart& part, unsigned char* out,
                                 const RowOf& row_of) {
  const float* rows[kTileActivations];
  const std::int64_t count = groups_.counts[group];
  for (std::int64_t first = 0; first < count; first += kTileActivations) {
    const std::int64_t some = std::min<std::int64_t>(count - first, kTileActivations);
    for (std::int64_t i = 0; i < some; ++i) rows[i] = row_of(first + i);
    kernels_.prepare_rows(kind_of(part), rows, some, part.cols, out);
    out += as_size(some) * activation_bytes(kind_of(part), part.cols);
  }
}

void ExpertKernel::compute(Span<const std::int64_t> experts, Span<const std::int64_t> offsets) {
  const std::size_t count = experts.size();
  if (offsets.size() != count)
    throw std::invalid_argument(std::to_string(count) + " experts and " + std::to_string(offsets.size()) +
                                " offsets");
  if (!has_begun_) throw std::invalid_argument("compute needs a begin before it");
  std::size_t num_checked = 0;
  try {
    for (; num_checked < count; ++num_checked) check_job(experts[num_checked], offsets[num_checked]);
  } catch (...) {
    take_back(experts.data(), num_checked);
    throw;
  }
  has_begun_ = false;  // what fails from here on needs a new begin
  for (std::size_t first = 0; first < count; first += jobs_.size()) {
    collect_jobs(experts.data() + first, offsets.data() + first, count - first);
    Pool& pool = kernels_.pool();
    const std::int64_t acts = jobs_.back().act_tasks_end, downs = jobs_.back().down_tasks_end;
    if (acts) pool.run(acts, [this](std::int64_t task, int thread) { run_act_task(task, thread); });
    if (downs) pool.run(downs, [this](std::int64_t task, int thread) { run_down_task(task, thread); });
  }
  has_begun_ = true;
}

std::size_t ExpertKernel::group_of(std::int64_t expert) const {
  const std::int64_t found = groups_.find(expert);
  if (found < 0) throw std::invalid_argument("no token was routed to expert " + std::to_string(expert));
  return as_size(found);
}

void ExpertKernel::check_rows(Span<const std::int64_t> experts, std::int64_t num_rows) const {
  if (!has_begun_) throw std::invalid_argument("outputs need a begin before them");
  std::int64_t wanted = 0;
  for (const std::int64_t expert : experts) wanted += groups_.counts[group_of(expert)];
  if (wanted != num_rows)
    throw std::invalid_argument(std::to_string(num_rows) + " rows, not " + std::to_string(wanted));
}

void ExpertKernel::put(Span<const std::int64_t> experts, RowSpan<const float> rows) {
  check_rows(experts, rows.rows);
  std::size_t num_marked = 0;
  try {
    for (; num_marked < experts.size(); ++num_marked) mark_computed(experts[num_marked]);
  } catch (...) {
    for (std::size_t i = 0; i < num_marked; ++i) num_done_[group_of(experts[i])] = 0;
    num_computed_ -= num_marked;
    throw;
  }
  float* outputs = outputs_.reserve_array<float>(0);
  const float* from = rows.data;
  for (const std::int64_t expert : experts) {
    const std::size_t group = group_of(expert);
    const std::int64_t size = groups_.counts[group] * hidden_size();
    std::copy(from, from + size, outputs + groups_.starts[group] * hidden_size());
    from += size;
  }
}

void ExpertKernel::get(Span<const std::int64_t> experts, RowSpan<float> rows) {
  check_rows(experts, rows.rows);
  for (const std::int64_t expert : experts) {
    if (!is_computed(group_of(expert)))
      throw std::invalid_argument("expert " + std::to_string(expert) + " was not computed");
  }
  const float* outputs = outputs_.reserve_array<float>(0);
  float* to = rows.data;
  for (const std::int64_t expert : experts) {
    const std::size_t group = group_of(expert);
    const float* first = outputs + groups_.starts[group] * hidden_size();
    to = std::copy(first, first + groups_.counts[group] * hidden_size(), to);
  }
}

void ExpertKernel::mark_computed(std::int64_t expert) {
  const std::size_t group = group_of(expert);
  if (num_done_[group] > 0)
    throw std::invalid_argument("expert " + std::to_string(expert) + " was computed before");
  num_done_[group] = num_slices();
  ++num_computed_;
}

// Counts a slice as computed, if that may come now.
void ExpertKernel::check_job(std::int64_t id, std::int64_t offset) {
  const std::int64_t expert = id / most_slices_;
  const auto number = as_size(id % most_slices_);
  const std::size_t group = group_of(id < 0 ? id : expert);
  if (is_computed(group) || (number == 0 && num_done_[group] > 0))
    throw std::invalid_argument("expert " + std::to_string(expert) + " was computed before");
  if (number != num_done_[group] || (number == 0 && is_open_))
    throw std::invalid_argument("slice " + std::to_string(number) + " of expert " + std::to_string(expert) +
                                " is not the next");
  const std::size_t num_bytes = block_bytes(layer_->slices[number], expert);
  if (offset < 0 || num_bytes > num_bytes_ || as_size(offset) > num_bytes_ - num_bytes) {
    throw std::invalid_argument("the block of expert " + std::to_string(expert) + ", at byte " +
                                std::to_string(offset) + ", is not inside the memory");
  }
  ++num_done_[group];
  is_open_ = !is_computed(group);
  num_computed_ += is_open_ ? 0 : 1;
}

void ExpertKernel::take_back(const std::int64_t* ids, std::size_t count) {
  while (count-- > 0) {
    const std::size_t group = group_of(ids[count] / most_slices_);
    if (is_computed(group)) --num_computed_;
    is_open_ = --num_done_[group] > 0;
  }
}

// The first of the experts given, as many as kPairsAtOnce allows; or slices of the first expert.
void ExpertKernel::collect_jobs(const std::int64_t* ids, const std::int64_t* offsets, std::size_t count) {
  jobs_.clear();
  std::int64_t pairs = 0;
  const bool cut = num_slices() > 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t group = group_of(ids[i] / most_slices_);
    if (i > 0 && (cut ? group != jobs_[0].group : pairs + groups_.counts[group] > kPairsAtOnce)) return;
    append_job(group, ids[i], offsets[i], pairs, cut ? 1 : count);
    if (!cut) pairs += groups_.counts[group];
  }
}

// num_jobs: of as many rows, to be run at once.
void ExpertKernel::append_job(std::size_t group, std::int64_t id, std::int64_t offset,
                              std::int64_t first_pair, std::size_t num_jobs) {
  const ExpertLayer::Slice& slice = layer_->slices[as_size(id % most_slices_)];
  const bool same = num_slices() > 1 && !jobs_.empty();
  Job job{group, &slice, first_pair, offset, same ? 0 : jobs_.size(), 0, 0, 0, 0};
  const std::int64_t count = groups_.counts[group];
  job.act_task_rows = act_task_rows(slice.act_rows, count, num_jobs);
  job.down_task_rows = kernels_.rows_per_task(layer_->down.format, layer_->down.cols, count,
                                              slice.down_rows * static_cast<std::int64_t>(num_jobs));
  const std::int64_t act_tasks = num_tasks(slice.act_rows, job.act_task_rows);
  job.act_tasks_end = act_tasks + (jobs_.empty() ? 0 : jobs_.back().act_tasks_end);
  job.down_tasks_end =
      num_tasks(slice.down_rows, job.down_task_rows) + (jobs_.empty() ? 0 : jobs_.back().down_tasks_end);
  // Of an expert whose activations do not end in this run some tasks seem to be left for ever.
  const bool ends = slice.act_row + slice.act_rows == layer_->gate.rows;
  std::atomic<std::int64_t>& left = tasks_left_[job.first_job];
  if (!same) left.store(kNotInThisRun, std::memory_order_relaxed);
  left.fetch_add(act_tasks - (ends && act_tasks > 0 ? kNotInThisRun : 0), std::memory_order_relaxed);
  jobs_.push_back(job);
}

std::int64_t ExpertKernel::act_task_rows(std::int64_t rows, std::int64_t count, std::size_t num_jobs) const {
  return kernels_.rows_per_task(layer_->gate.format, layer_->gate.cols, count,
                                rows * static_cast<std::int64_t>(num_jobs));
}

Matrix ExpertKernel::part_of(const Job& job, const ExpertPart& part) const {
  const std::int64_t expert = groups_.experts[job.group];
  const float scale = part.scales ? (*part.scales)[as_size(expert)] : 1;
  return {memory_ + job.offset + begin_of(part, expert), part.format, part.rows, part.cols, scale};
}

// y[i * y_stride + r - first] = bias[r] + row r of the part times x_i, for first <= r < last.
void ExpertKernel::multiply(const Job& job, const ExpertPart& part, const std::optional<ExpertPart>& bias,
                            std::int64_t first, std::int64_t last, const void* x, int thread, float* y,
                            std::int64_t y_stride) {
  const std::int64_t count = groups_.counts[job.group], num_rows = last - first;
  Matrix rows = part_of(job, part);
  rows.data = rows.row(first);
  rows.rows = num_rows;
  kernels_.multiply(rows, 0, num_rows, kind_of(part), x, count, thread, y, y_stride);
  if (!bias) return;
  const unsigned char* added = part_of(job, *bias).row(first);
  for (std::int64_t i = 0; i < count; ++i)
    kernels_.ops().add_stored(bias->format, added, y + i * y_stride, num_rows);
}

// act(gate x) * (up x) for some rows of one expert. The thread that does the last rows of an expert prepares
// all of them for down.
void ExpertKernel::run_act_task(std::int64_t task, int thread) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), task,
                                    [](std::int64_t t, const Job& j) { return t < j.act_tasks_end; });
  const bool ends = task + 1 == job->act_tasks_end;  // the thread goes on with another expert
  const std::int64_t tasks_before = job == jobs_.begin() ? 0 : std::prev(job)->act_tasks_end;
  const ExpertLayer::Slice& slice = *job->slice;
  const std::int64_t first = (task - tasks_before) * job->act_task_rows, all_rows = layer_->gate.rows;
  const std::int64_t num_rows = std::min(job->act_task_rows, slice.act_rows - first), last = first + num_rows;
  float* out = gates_.reserve_array<float>(0) + job->first_pair * all_rows + slice.act_row + first;
  float* up = ups_.reserve_array<float>(0) + static_cast<std::size_t>(thread) * ups_of_thread_;
  if (slice.up) fetch_rows(part_of(*job, *slice.up).row(first));
  multiply(*job, *slice.gate, slice.gate_bias, first, last, input(*slice.gate, job->group), thread, out,
           all_rows);
  if (ends && std::next(job) != jobs_.end() && std::next(job)->slice->gate)
    fetch_rows(part_of(*std::next(job), *std::next(job)->slice->gate).data);
  if (slice.up)
    multiply(*job, *slice.up, slice.up_bias, first, last, input(*slice.up, job->group), thread, up, num_rows);
  for (std::int64_t i = 0; i < groups_.counts[job->group]; ++i) {
    float* row = out + i * all_rows;
    const auto [activation, limits] = layer_->form;
    kernels_.ops().activate(activation, limits, row, slice.up ? up + i * num_rows : nullptr, row, num_rows);
  }
  if (tasks_left_[job->first_job].fetch_sub(1) == 1) finish_act(*job);
}

void ExpertKernel::finish_act(const Job& job) {
  const std::int64_t rows = layer_->gate.rows;
  const float* values = gates_.reserve_array<float>(0) + job.first_pair * rows;
  if (squares_ != nullptr) add_acts(job, values);
  prepare_group(job.group, layer_->down, act(job), [&](std::int64_t i) { return values + i * rows; });
}

void ExpertKernel::run_down_task(std::int64_t task, int thread) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), task,
                                    [](std::int64_t t, const Job& j) { return t < j.down_tasks_end; });
  const std::int64_t tasks_before = job == jobs_.begin() ? 0 : std::prev(job)->down_tasks_end;
  const ExpertLayer::Slice& slice = *job->slice;
  const std::int64_t first = (task - tasks_before) * job->down_task_rows, all_rows = layer_->down.rows;
  const std::int64_t last = std::min(first + job->down_task_rows, slice.down_rows);
  float* out =
      outputs_.reserve_array<float>(0) + groups_.starts[job->group] * all_rows + slice.down_row + first;
  if (last == slice.down_rows && std::next(job) != jobs_.end() && std::next(job)->slice->down)
    fetch_rows(part_of(*std::next(job), *std::next(job)->slice->down).data);
  multiply(*job, *slice.down, slice.down_bias, first, last, act(*job), thread, out, all_rows);
}

// Where the prepared activations of a group begin.
unsigned char* ExpertKernel::input(const ExpertPart& part, std::size_t group) {
  const ActivationKind kind = kind_of(part);
  auto* all = static_cast<unsigned char*>(inputs_[static_cast<std::size_t>(kind)].reserve(0));
  return shares_input_ ? all : all + as_size(groups_.starts[group]) * activation_bytes(kind, part.cols);
}

unsigned char* ExpertKernel::act(const Job& job) {
  const ActivationKind kind = kind_of(layer_->down);
  auto* all = static_cast<unsigned char*>(acts_[static_cast<std::size_t>(kind)].reserve(0));
  return all + as_size(job.first_pair) * activation_bytes(kind, layer_->down.cols);
}

float ExpertKernel::weight_of(std::int64_t pair, const float* output) const {
  const float weight = weights_[as_size(pair)];
  if (norm_ == nullptr) return weight;
  double squares = 0;
  for (std::int64_t i = 0; i < hidden_size(); ++i) {
    const double scaled = output[i] * norm_->scale[as_size(i)];
    squares += scaled * scaled;
  }
  return static_cast<float>(weight / std::sqrt(squares / static_cast<double>(hidden_size()) + norm_->eps));
}

void ExpertKernel::finish(float* out) {
  if (!has_begun_ || num_computed_ != groups_.size()) {
    throw std::invalid_argument(has_begun_ ? std::to_string(groups_.size() - num_computed_) + " of " +
                                                 std::to_string(groups_.size()) + " experts were not computed"
                                           : "finish needs a begin before it");
  }
  has_begun_ = false;
  const float* outputs = outputs_.reserve_array<float>(0);
  const auto sum_token = [&](std::int64_t token, int) {
    for (std::int64_t pair = token * top_k_; pair < (token + 1) * top_k_; ++pair) {
      const float* output = outputs + groups_.position_of[as_size(pair)] * hidden_size();
      kernels_.ops().add_scaled(output, weight_of(pair, output), out + token * hidden_size(), hidden_size());
    }
  };
  if (num_tokens_ * top_k_ * hidden_size() > kInlineElements) {
    kernels_.pool().run(num_tokens_, sum_token);
  } else {
    for (std::int64_t token = 0; token < num_tokens_; ++token) sum_token(token, 0);
  }
}

}  // namespace moeinf
