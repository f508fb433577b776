#include "moeinf/compute/layers/experts.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace moeinf {
namespace {

// Places whose intermediates exist at once: bounds their memory, and is enough work for the threads between
// two barriers.
constexpr std::int64_t kPlacesAtOnce = 512;
constexpr std::int64_t kInlineElements = 128 << 10;  // summed by the caller alone: some 5 us

void require_shape(const ExpertPart& part, const char* name, std::int64_t rows, std::int64_t cols) {
  if (part.rows != rows || part.cols != cols || rows < 1 || cols < 1) {
    throw std::invalid_argument(std::string(name) + " is [" + std::to_string(part.rows) + ", " +
                                std::to_string(part.cols) + "]; up asks for [" + std::to_string(rows) + ", " +
                                std::to_string(cols) + "]");
  }
  if (cols % block_weights(part.format) != 0) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(cols) +
                                " columns, no whole number of " + name_of(part.format) + " blocks");
  }
}

void require_bias(const std::optional<ExpertPart>& bias, const char* name, std::int64_t rows) {
  if (!bias) return;
  require_shape(*bias, name, rows, 1);  // so it is of no format with blocks
}

std::size_t end_of(const ExpertPart& part) {
  return part.offset_bytes + static_cast<std::size_t>(part.rows) * row_bytes(part.format, part.cols);
}

std::int64_t num_tasks(std::int64_t rows, std::int64_t rows_of_task) {
  return (rows + rows_of_task - 1) / rows_of_task;
}

std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

ExpertKernel::ExpertKernel(Kernels& kernels, const unsigned char* memory, std::size_t num_bytes,
                           const ExpertParts& parts, Activation activation, float limit)
    : kernels_(kernels),
      memory_(memory),
      num_bytes_(num_bytes),
      first_(parts.gate ? *parts.gate : parts.up),
      second_(parts.gate ? std::optional(parts.up) : std::nullopt),
      down_(parts.down),
      first_bias_(parts.gate ? parts.gate_bias : parts.up_bias),
      second_bias_(parts.gate ? parts.up_bias : std::nullopt),
      down_bias_(parts.down_bias),
      activation_(activation),
      limit_(limit) {
  const std::int64_t rows = parts.up.rows, cols = parts.up.cols;
  require_shape(parts.up, "up", rows, cols);
  require_shape(first_, "gate", rows, cols);
  require_shape(down_, "down", cols, rows);
  require_bias(parts.gate_bias, "gate_bias", parts.gate ? rows : 0);
  require_bias(parts.up_bias, "up_bias", rows);
  require_bias(down_bias_, "down_bias", cols);
  if (activation == Activation::kSwigluClamped && !(parts.gate && limit > 0))
    throw std::invalid_argument("swiglu_clamped needs a gate, and a limit above 0");
  for (const auto& part :
       {std::optional(first_), second_, std::optional(down_), first_bias_, second_bias_, down_bias_})
    if (part) block_bytes_ = std::max(block_bytes_, end_of(*part));
}

void ExpertKernel::begin(const float* hidden, std::int64_t num_tokens, const std::int64_t* ids,
                         const float* weights, std::int64_t top_k) {
  has_begun_ = false;
  num_tokens_ = num_tokens;
  top_k_ = top_k;
  weights_.assign(weights, weights + num_tokens * top_k);
  groups_.sort(ids, num_tokens * top_k);
  shares_input_ = num_tokens == 1 && groups_.size() == as_size(top_k);
  is_computed_.assign(groups_.size(), 0);
  num_computed_ = 0;
  reserve();
  prepare_inputs(hidden);
  has_begun_ = true;
}

// All memory of the step: compute may be called many times, and must not move what is there.
void ExpertKernel::reserve() {
  const std::size_t num_places = groups_.sorted.size();
  std::int64_t seconds = 0, most_places = std::min(kPlacesAtOnce, static_cast<std::int64_t>(num_places));
  for (const std::int64_t count : groups_.counts) most_places = std::max(most_places, count);
  for (const std::int64_t count : groups_.counts) {
    for (const ExpertPart* part : {&first_, second_ ? &*second_ : &first_, &down_}) {
      const ActivationKind kind = kernels_.activation_for(part->format, count);
      Buffer& buffer = (part == &down_ ? middles_ : inputs_)[static_cast<std::size_t>(kind)];
      const std::size_t num_rows = part == &down_ ? as_size(most_places) : num_places;
      buffer.reserve(num_rows * activation_bytes(kind, part->cols));
    }
    const std::int64_t most_rows = middle_task_rows(count, groups_.size());
    if (second_) seconds = std::max(seconds, count * std::min(most_rows, first_.rows));
    if (kernels_.by_tiles(count)) kernels_.reserve_thread_scratch(std::max(first_.cols, down_.cols));
  }
  seconds_of_thread_ = (as_size(seconds) + 15) / 16 * 16;
  seconds_.reserve_array<float>(seconds_of_thread_ * as_size(kernels_.pool().num_threads()));
  firsts_.reserve_array<float>(as_size(most_places * first_.rows));
  outputs_.reserve_array<float>(num_places * as_size(down_.rows));
  if (tasks_left_.size() < groups_.size())
    tasks_left_ = std::vector<std::atomic<std::int64_t>>(groups_.size());
}

std::size_t ExpertKernel::scratch_bytes() const {
  std::size_t total = firsts_.used_bytes() + seconds_.used_bytes() + outputs_.used_bytes();
  for (const auto& buffers : {&inputs_, &middles_}) {
    for (const Buffer& buffer : *buffers) total += buffer.used_bytes();
  }
  return total;
}

// A token's activation is made anew for each of its experts, which costs no more than copying it would.
void ExpertKernel::prepare_inputs(const float* hidden) {
  const auto prepare_group = [&](std::int64_t index, int) {
    const auto group = as_size(index);
    const ExpertPart& second = second_ ? *second_ : first_;
    const ActivationKind kinds[] = {kernels_.activation_for(first_.format, groups_.counts[group]),
                                    kernels_.activation_for(second.format, groups_.counts[group])};
    for (int part = 0; part < (kinds[0] == kinds[1] ? 1 : 2); ++part) {
      unsigned char* out = input(part == 0 ? first_ : second, group);
      for (std::int64_t i = 0; i < groups_.counts[group]; ++i) {
        const std::int64_t token = groups_.sorted[as_size(groups_.starts[group] + i)] / top_k_;
        kernels_.ops().prepare(kinds[part], hidden + token * hidden_size(), hidden_size(), out);
        out += activation_bytes(kinds[part], hidden_size());
      }
    }
  };
  const auto num_groups = static_cast<std::int64_t>(groups_.size());
  kernels_.pool().run(shares_input_ ? std::min<std::int64_t>(num_groups, 1) : num_groups, prepare_group);
}

void ExpertKernel::compute(const std::int64_t* experts, const std::int64_t* offsets, std::size_t count) {
  if (!has_begun_) throw std::invalid_argument("compute needs a begin before it");
  std::size_t num_checked = 0;
  try {
    for (; num_checked < count; ++num_checked) check_job(experts[num_checked], offsets[num_checked]);
  } catch (...) {
    for (std::size_t i = 0; i < num_checked; ++i) is_computed_[as_size(groups_.find(experts[i]))] = 0;
    throw;
  }
  for (std::size_t first = 0; first < count; first += jobs_.size()) {
    collect_jobs(experts + first, offsets + first, count - first);
    Pool& pool = kernels_.pool();
    pool.run(jobs_.back().middle_tasks_end,
             [this](std::int64_t task, int thread) { run_middle_task(task, thread); });
    pool.run(jobs_.back().down_tasks_end,
             [this](std::int64_t task, int thread) { run_down_task(task, thread); });
  }
  num_computed_ += count;
}

void ExpertKernel::check_job(std::int64_t expert, std::int64_t offset) {
  const std::int64_t found = groups_.find(expert);
  if (found < 0) throw std::invalid_argument("no token was routed to expert " + std::to_string(expert));
  const auto group = as_size(found);
  if (is_computed_[group])
    throw std::invalid_argument("expert " + std::to_string(expert) + " was computed before");
  if (offset < 0 || block_bytes_ > num_bytes_ || as_size(offset) > num_bytes_ - block_bytes_) {
    throw std::invalid_argument("the block of expert " + std::to_string(expert) + ", at byte " +
                                std::to_string(offset) + ", is not inside the memory");
  }
  is_computed_[group] = 1;
}

// The first of the experts given, as many as kPlacesAtOnce allows.
void ExpertKernel::collect_jobs(const std::int64_t* experts, const std::int64_t* offsets, std::size_t count) {
  jobs_.clear();
  std::int64_t places = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto group = as_size(groups_.find(experts[i]));
    if (i > 0 && places + groups_.counts[group] > kPlacesAtOnce) return;
    append_job(group, offsets[i], places, count);
    places += groups_.counts[group];
  }
}

void ExpertKernel::append_job(std::size_t group, std::int64_t offset, std::int64_t first_place,
                              std::size_t num_jobs) {
  Job job{group, first_place, offset, 0, 0, 0, 0};
  job.middle_task_rows = middle_task_rows(groups_.counts[group], num_jobs);
  job.down_task_rows = kernels_.rows_per_task(down_.format, down_.cols, groups_.counts[group],
                                              down_.rows * static_cast<std::int64_t>(num_jobs));
  const std::int64_t middle_tasks = num_tasks(first_.rows, job.middle_task_rows);
  job.middle_tasks_end = middle_tasks + (jobs_.empty() ? 0 : jobs_.back().middle_tasks_end);
  job.down_tasks_end =
      num_tasks(down_.rows, job.down_task_rows) + (jobs_.empty() ? 0 : jobs_.back().down_tasks_end);
  tasks_left_[jobs_.size()].store(middle_tasks, std::memory_order_relaxed);
  jobs_.push_back(job);
}

std::int64_t ExpertKernel::middle_task_rows(std::int64_t count, std::size_t num_jobs) const {
  return kernels_.rows_per_task(first_.format, first_.cols, count,
                                first_.rows * static_cast<std::int64_t>(num_jobs));
}

Matrix ExpertKernel::part_of(const Job& job, const ExpertPart& part) const {
  return {memory_ + job.offset + part.offset_bytes, part.format, part.rows, part.cols};
}

// y[i * y_stride + r - first] = bias[r] + row r of the part times x_i, for first <= r < last.
void ExpertKernel::multiply(const Job& job, const ExpertPart& part, const std::optional<ExpertPart>& bias,
                            std::int64_t first, std::int64_t last, const void* x, int thread, float* y,
                            std::int64_t y_stride) {
  const std::int64_t count = groups_.counts[job.group], num_rows = last - first;
  const Matrix rows{part_of(job, part).row(first), part.format, num_rows, part.cols};
  kernels_.multiply(rows, 0, num_rows, x, count, thread, y, y_stride);
  if (!bias) return;
  const unsigned char* added = part_of(job, *bias).row(first);
  for (std::int64_t i = 0; i < count; ++i)
    kernels_.ops().add_stored(bias->format, added, y + i * y_stride, num_rows);
}

// act(gate x) * (up x) for some rows of one expert; whoever does the last of an expert prepares it for down.
void ExpertKernel::run_middle_task(std::int64_t task, int thread) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), task,
                                    [](std::int64_t t, const Job& j) { return t < j.middle_tasks_end; });
  const std::int64_t tasks_before = job == jobs_.begin() ? 0 : std::prev(job)->middle_tasks_end;
  const std::int64_t first = (task - tasks_before) * job->middle_task_rows;
  const std::int64_t num_rows = std::min(job->middle_task_rows, first_.rows - first), last = first + num_rows;
  float* out = firsts_.reserve_array<float>(0) + job->first_place * first_.rows + first;
  float* up = seconds_.reserve_array<float>(0) + static_cast<std::size_t>(thread) * seconds_of_thread_;
  multiply(*job, first_, first_bias_, first, last, input(first_, job->group), thread, out, first_.rows);
  if (second_)
    multiply(*job, *second_, second_bias_, first, last, input(*second_, job->group), thread, up, num_rows);
  for (std::int64_t i = 0; i < groups_.counts[job->group]; ++i) {
    float* row = out + i * first_.rows;
    kernels_.ops().activate(activation_, limit_, row, second_ ? up + i * num_rows : nullptr, row, num_rows);
  }
  if (tasks_left_[static_cast<std::size_t>(job - jobs_.begin())].fetch_sub(1) == 1) finish_middle(*job);
}

void ExpertKernel::finish_middle(const Job& job) {
  const ActivationKind kind = kernels_.activation_for(down_.format, groups_.counts[job.group]);
  const float* values = firsts_.reserve_array<float>(0) + job.first_place * first_.rows;
  unsigned char* out = middle(job);
  for (std::int64_t i = 0; i < groups_.counts[job.group]; ++i) {
    kernels_.ops().prepare(kind, values + i * first_.rows, first_.rows, out);
    out += activation_bytes(kind, first_.rows);
  }
}

void ExpertKernel::run_down_task(std::int64_t task, int thread) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), task,
                                    [](std::int64_t t, const Job& j) { return t < j.down_tasks_end; });
  const std::int64_t tasks_before = job == jobs_.begin() ? 0 : std::prev(job)->down_tasks_end;
  const std::int64_t first = (task - tasks_before) * job->down_task_rows;
  const std::int64_t last = std::min(first + job->down_task_rows, down_.rows);
  float* out = outputs_.reserve_array<float>(0) + groups_.starts[job->group] * down_.rows + first;
  multiply(*job, down_, down_bias_, first, last, middle(*job), thread, out, down_.rows);
}

// Where the prepared activations of a group begin.
unsigned char* ExpertKernel::input(const ExpertPart& part, std::size_t group) {
  const ActivationKind kind = kernels_.activation_for(part.format, groups_.counts[group]);
  auto* all = static_cast<unsigned char*>(inputs_[static_cast<std::size_t>(kind)].reserve(0));
  return shares_input_ ? all : all + as_size(groups_.starts[group]) * activation_bytes(kind, part.cols);
}

unsigned char* ExpertKernel::middle(const Job& job) {
  const ActivationKind kind = kernels_.activation_for(down_.format, groups_.counts[job.group]);
  auto* all = static_cast<unsigned char*>(middles_[static_cast<std::size_t>(kind)].reserve(0));
  return all + as_size(job.first_place) * activation_bytes(kind, down_.cols);
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
    for (std::int64_t place = token * top_k_; place < (token + 1) * top_k_; ++place) {
      kernels_.ops().add_scaled(outputs + groups_.position_of[as_size(place)] * hidden_size(),
                                weights_[as_size(place)], out + token * hidden_size(), hidden_size());
    }
  };
  if (num_tokens_ * top_k_ * hidden_size() > kInlineElements) {
    kernels_.pool().run(num_tokens_, sum_token);
  } else {
    for (std::int64_t token = 0; token < num_tokens_; ++token) sum_token(token, 0);
  }
}

}  // namespace moeinf
