#include "moeinf/kernels/experts.h"

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
                                std::to_string(part.cols) + "]; gate asks for [" + std::to_string(rows) +
                                ", " + std::to_string(cols) + "]");
  }
  if (cols % block_weights(part.format) != 0) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(cols) +
                                " columns, no whole number of " + name_of(part.format) + " blocks");
  }
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
                           const ExpertPart& gate, const ExpertPart& up, const ExpertPart& down)
    : kernels_(kernels), memory_(memory), num_bytes_(num_bytes), gate_(gate), up_(up), down_(down) {
  require_shape(gate, "gate", gate.rows, gate.cols);
  require_shape(up, "up", gate.rows, gate.cols);
  require_shape(down, "down", gate.cols, gate.rows);
  block_bytes_ = std::max({end_of(gate), end_of(up), end_of(down)});
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
  std::int64_t ups = 0, most_places = std::min(kPlacesAtOnce, static_cast<std::int64_t>(num_places));
  for (const std::int64_t count : groups_.counts) most_places = std::max(most_places, count);
  for (const std::int64_t count : groups_.counts) {
    for (const ExpertPart* part : {&gate_, &up_, &down_}) {
      const ActivationKind kind = activation_for(part->format, count);
      Buffer& buffer = (part == &down_ ? middles_ : inputs_)[static_cast<std::size_t>(kind)];
      const std::size_t num_rows = part == &down_ ? as_size(most_places) : num_places;
      buffer.reserve(num_rows * activation_bytes(kind, part->cols));
    }
    const std::int64_t most_rows = middle_task_rows(count, groups_.size());
    ups = std::max(ups, count * std::min(most_rows, gate_.rows));
    if (count > kMaxDotRows) kernels_.reserve_thread_scratch(std::max(gate_.cols, down_.cols));
  }
  ups_of_thread_ = (as_size(ups) + 15) / 16 * 16;
  ups_.reserve_array<float>(ups_of_thread_ * as_size(kernels_.pool().num_threads()));
  gates_.reserve_array<float>(as_size(most_places * gate_.rows));
  outputs_.reserve_array<float>(num_places * as_size(down_.rows));
  if (tasks_left_.size() < groups_.size())
    tasks_left_ = std::vector<std::atomic<std::int64_t>>(groups_.size());
}

// A token's activation is made anew for each of its experts, which costs no more than copying it would.
void ExpertKernel::prepare_inputs(const float* hidden) {
  const auto prepare_group = [&](std::int64_t index, int) {
    const auto group = as_size(index);
    const ActivationKind kinds[] = {activation_for(gate_.format, groups_.counts[group]),
                                    activation_for(up_.format, groups_.counts[group])};
    for (int part = 0; part < (kinds[0] == kinds[1] ? 1 : 2); ++part) {
      unsigned char* out = input(part == 0 ? gate_ : up_, group);
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
  Job job{group, first_place, part_at(gate_, offset), part_at(up_, offset), part_at(down_, offset), 0, 0, 0,
          0};
  job.middle_task_rows = middle_task_rows(groups_.counts[group], num_jobs);
  job.down_task_rows = kernels_.rows_per_task(down_.format, down_.cols, groups_.counts[group],
                                              down_.rows * static_cast<std::int64_t>(num_jobs));
  const std::int64_t middle_tasks = num_tasks(gate_.rows, job.middle_task_rows);
  job.middle_tasks_end = middle_tasks + (jobs_.empty() ? 0 : jobs_.back().middle_tasks_end);
  job.down_tasks_end =
      num_tasks(down_.rows, job.down_task_rows) + (jobs_.empty() ? 0 : jobs_.back().down_tasks_end);
  tasks_left_[jobs_.size()].store(middle_tasks, std::memory_order_relaxed);
  jobs_.push_back(job);
}

std::int64_t ExpertKernel::middle_task_rows(std::int64_t count, std::size_t num_jobs) const {
  return kernels_.rows_per_task(gate_.format, gate_.cols, count,
                                gate_.rows * static_cast<std::int64_t>(num_jobs));
}

Matrix ExpertKernel::part_at(const ExpertPart& part, std::int64_t offset) const {
  return {memory_ + offset + part.offset_bytes, part.format, part.rows, part.cols};
}

// silu(gate x) * (up x) for some rows of one expert; whoever does the last of an expert prepares it for down.
void ExpertKernel::run_middle_task(std::int64_t task, int thread) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), task,
                                    [](std::int64_t t, const Job& j) { return t < j.middle_tasks_end; });
  const std::int64_t tasks_before = job == jobs_.begin() ? 0 : std::prev(job)->middle_tasks_end;
  const std::int64_t first = (task - tasks_before) * job->middle_task_rows;
  const std::int64_t num_rows = std::min(job->middle_task_rows, gate_.rows - first);
  const std::int64_t count = groups_.counts[job->group];
  float* gate = gates_.reserve_array<float>(0) + job->first_place * gate_.rows;
  float* up = ups_.reserve_array<float>(0) + static_cast<std::size_t>(thread) * ups_of_thread_;
  const Matrix up_rows{job->up.row(first), job->up.format, num_rows, job->up.cols};
  kernels_.multiply(job->gate, first, first + num_rows, input(gate_, job->group), count, thread, gate,
                    gate_.rows);
  kernels_.multiply(up_rows, 0, num_rows, input(up_, job->group), count, thread, up, num_rows);
  for (std::int64_t i = 0; i < count; ++i) {
    float* out = gate + i * gate_.rows + first;
    kernels_.ops().silu_mul(out, up + i * num_rows, out, num_rows);
  }
  if (tasks_left_[static_cast<std::size_t>(job - jobs_.begin())].fetch_sub(1) == 1) finish_middle(*job);
}

void ExpertKernel::finish_middle(const Job& job) {
  const ActivationKind kind = activation_for(down_.format, groups_.counts[job.group]);
  const float* values = gates_.reserve_array<float>(0) + job.first_place * gate_.rows;
  unsigned char* out = middle(job);
  for (std::int64_t i = 0; i < groups_.counts[job.group]; ++i) {
    kernels_.ops().prepare(kind, values + i * gate_.rows, gate_.rows, out);
    out += activation_bytes(kind, gate_.rows);
  }
}

void ExpertKernel::run_down_task(std::int64_t task, int thread) {
  const auto job = std::upper_bound(jobs_.begin(), jobs_.end(), task,
                                    [](std::int64_t t, const Job& j) { return t < j.down_tasks_end; });
  const std::int64_t tasks_before = job == jobs_.begin() ? 0 : std::prev(job)->down_tasks_end;
  const std::int64_t first = (task - tasks_before) * job->down_task_rows;
  const std::int64_t last = std::min(first + job->down_task_rows, down_.rows);
  float* out = outputs_.reserve_array<float>(0) + groups_.starts[job->group] * down_.rows;
  kernels_.multiply(job->down, first, last, middle(*job), groups_.counts[job->group], thread, out,
                    down_.rows);
}

// Where the prepared activations of a group begin.
unsigned char* ExpertKernel::input(const ExpertPart& part, std::size_t group) {
  const ActivationKind kind = activation_for(part.format, groups_.counts[group]);
  auto* all = static_cast<unsigned char*>(inputs_[static_cast<std::size_t>(kind)].reserve(0));
  return shares_input_ ? all : all + as_size(groups_.starts[group]) * activation_bytes(kind, part.cols);
}

unsigned char* ExpertKernel::middle(const Job& job) {
  const ActivationKind kind = activation_for(down_.format, groups_.counts[job.group]);
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
